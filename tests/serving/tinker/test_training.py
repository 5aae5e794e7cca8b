"""What a client trains is what the learner trains in this process, and no request changes anything twice or by half."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sparring.models.policy import LoraSettings, Policy
from sparring.serving.tinker.answers import ForwardResult, SampleResult, TokenLogprobs
from sparring.serving.tinker.base import ALPHA
from sparring.serving.tinker.wire import read_fields
from sparring.types import Completion, StopReason
from tests.faults.recipe.tiny import build
from tests.serving.tinker.calls import (
    call,
    create_run,
    datum,
    fetch,
    forward_body,
    open_session,
    post,
    step_body,
    tensor,
    write_forward,
)
from tests.serving.tinker.conftest import KEY, Serve, Server
from tests.serving.tinker.values import ADVANTAGES, IDS, SAMPLED

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
DATUM = datum(IDS, logprobs=SAMPLED, advantages=ADVANTAGES)


def reference_policy() -> Policy:
    """Return the model with a new adapter, as a recipe creates it."""
    model, tokenizer = build(0)
    return Policy(model, tokenizer, max_positions=128, lora=LoraSettings(rank=4, alpha=ALPHA, targets=TARGETS), seed=1)


def reference_module() -> Any:
    """Return the model with a new adapter, as transformers and peft compute it."""
    return reference_policy().module


def target_logprobs(module: Any, ids: list[int] = IDS) -> Tensor:
    logits = module(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    return logits[range(len(ids) - 1), ids[1:]]


def loss_of(name: str, logprobs: Tensor) -> Tensor:
    """Return a loss as Tinker's documentation writes it (https://tinker-docs.thinkingmachines.ai/tinker/losses)."""
    old, advantages = torch.tensor(SAMPLED), torch.tensor(ADVANTAGES)
    ratio = (logprobs - old).exp()
    if name == "importance_sampling":
        return -(ratio * advantages).sum()
    if name == "ppo":
        return -torch.min(ratio * advantages, ratio.clamp(0.9, 1.1) * advantages).sum()
    if name == "cispo":
        return -(ratio.clamp(0.0, 4.0).detach() * logprobs * advantages).sum()
    return -(logprobs * advantages - 0.5 * 0.05 * (logprobs - old) ** 2).sum()


def weights_of(server: Server, run: str) -> dict[str, Tensor]:
    return dict(server.service.runs[run].export_adapter().weights.tensors)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("importance_sampling", {}),
        ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
        ("cispo", {}),
        ("dro", {"beta": 0.05}),
    ],
)
def test_five_steps_of_a_loss_equal_those_of_transformers_and_torch(
    serve: Serve, name: str, config: dict[str, float]
) -> None:
    async def run() -> None:
        module = reference_module()
        trained = {key: one for key, one in module.named_parameters() if one.requires_grad}
        # Adam divides by the size of the gradient, so a small eps would amplify differences of rounding.
        optimizer = torch.optim.AdamW(trained.values(), lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)
        async with serve() as server:
            model = await create_run(server.http)
            for step in range(5):
                # The gradients of two requests add up.
                for half in (1, 2):
                    result = await call(
                        server.http, "forward_backward", forward_body(model, 3 * step + half, [DATUM], name, **config)
                    )
                    logprobs = target_logprobs(module)
                    loss = loss_of(name, logprobs)
                    loss.backward()
                    assert result["metrics"]["loss:sum"] == pytest.approx(loss.item(), rel=1e-5, abs=1e-5)
                    assert result["loss_fn_outputs"][0]["logprobs"]["data"] == pytest.approx(
                        logprobs.tolist(), rel=1e-5, abs=1e-5
                    )
                norm = torch.nn.utils.clip_grad_norm_(trained.values(), 5.0)
                optimizer.step()
                optimizer.zero_grad()
                adam = {"beta1": 0.8, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.1, "grad_clip_norm": 5.0}
                stepped = await call(server.http, "optim_step", step_body(model, 3 * step + 3, **adam))
                assert stepped["metrics"]["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
            for key, value in weights_of(server, model).items():
                torch.testing.assert_close(value, trained[key].detach(), rtol=1e-4, atol=1e-5)

    asyncio.run(run())


def test_cross_entropy_is_the_plain_sum_of_weighted_terms(serve: Serve) -> None:
    async def run() -> None:
        weights = [0.0, 1.0, -2.0, 0.5, 0.0, 3.0, 1.0]
        expected = -(target_logprobs(reference_module()) * torch.tensor(weights)).sum().item()
        async with serve() as server:
            model = await create_run(server.http)
            one = await call(server.http, "forward_backward", forward_body(model, 1, [datum(IDS, weights=weights)]))
            doubled = [2 * weight for weight in weights]
            two = await call(
                server.http,
                "forward_backward",
                forward_body(model, 2, [datum(IDS, weights=doubled), datum(IDS, weights=weights)]),
            )
        assert one["metrics"]["loss:sum"] == pytest.approx(expected, rel=1e-5)
        assert two["metrics"]["loss:sum"] == pytest.approx(3 * expected, rel=1e-5)

    asyncio.run(run())


def test_targets_may_be_any_tokens_and_several_at_each_position(serve: Serve) -> None:
    async def run() -> None:
        targets = [[3, 4], [40, 0], [1, 2], [100, 9], [7, 7], [33, 34], [80, 81]]
        flat = [token for pair in targets for token in pair]
        given = datum(IDS, target_tokens=tensor(flat, "int64", [7, 2]), weights=tensor([1.0] * 14, shape=[7, 2]))
        logits = reference_module()(torch.tensor([IDS[:-1]])).logits[0].log_softmax(-1)
        expected = logits.gather(1, torch.tensor(targets))
        async with serve() as server:
            model = await create_run(server.http)
            found = await call(server.http, "forward_backward", forward_body(model, 1, [DATUM | {}, given][1:]))
        output = found["loss_fn_outputs"][0]["logprobs"]
        assert output["shape"] == [7, 2]
        assert output["data"] == pytest.approx(expected.flatten().tolist(), rel=1e-5)
        assert found["metrics"]["loss:sum"] == pytest.approx(-expected.sum().item(), rel=1e-5)

    asyncio.run(run())


def test_a_protocol_buffer_is_computed_as_json_is(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            settings = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
            data = [DATUM, datum(IDS[:4], logprobs=SAMPLED[:3], advantages=ADVANTAGES[:3])]
            as_json = await call(server.http, "forward_backward", forward_body(model, 1, data, "ppo", **settings))
            body = write_forward(forward_body(model, 2, data, "ppo", **settings))
            protobuf = {"content-type": "application/x-protobuf"}
            answer = await server.http.post("/api/v1/forward_backward", content=body, headers=protobuf)
            assert await fetch(server.http, answer.json()["request_id"]) == as_json

    asyncio.run(run())


def test_forward_adds_no_gradient(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            before = weights_of(server, model)
            body = forward_body(model, 1, [DATUM], "ppo")
            body["forward_input"] = body.pop("forward_backward_input")
            assert (await call(server.http, "forward", body))["metrics"]["loss:sum"]
            assert (await call(server.http, "optim_step", step_body(model, 2)))["metrics"]["grad_norm"] == 0.0
            after = weights_of(server, model)
            assert all(torch.equal(after[name], before[name]) for name in before)

    asyncio.run(run())


def test_a_repeated_request_is_computed_once(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            for _ in range(3):
                first = await call(server.http, "forward_backward", forward_body(model, 1, [DATUM], "ppo"))
                stepped = await call(server.http, "optim_step", step_body(model, 2))
            once = await call(server.http, "forward_backward", forward_body(model, 3, [DATUM], "ppo"))
            other = await create_run(server.http)
            assert await call(server.http, "forward_backward", forward_body(other, 1, [DATUM], "ppo")) == first
            assert await call(server.http, "optim_step", step_body(other, 2)) == stepped
            assert await call(server.http, "forward_backward", forward_body(other, 3, [DATUM], "ppo")) == once
            # Another request with a used id is refused.
            refused = await server.http.post("/api/v1/optim_step", json=step_body(model, 2, learning_rate=1.0))
            assert refused.status_code == 400
            assert "another request" in refused.json()["detail"]

    asyncio.run(run())


def test_old_results_are_forgotten_but_never_computed_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr("sparring.serving.tinker.futures.MOST_VALUES", 10)
        async with serve() as server:
            model = await create_run(server.http)
            bodies = [forward_body(model, seq, [DATUM], "ppo") for seq in (1, 2, 3, 4)]
            for body in bodies:
                await call(server.http, "forward_backward", body)
            # Results of 7 values each: only the newest fits.
            for body, status in zip(bodies, (410, 410, 410, 200), strict=True):
                assert (await server.http.post("/api/v1/forward_backward", json=body)).status_code == status

    asyncio.run(run())


def test_requests_are_computed_in_the_order_of_their_sequence_ids(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            model, other = await create_run(server.http), await create_run(server.http)
            step = await post(server.http, "optim_step", step_body(model, 2))
            pending = await server.http.post(
                "/api/v1/retrieve_future", json={"request_id": step["request_id"]}, timeout=60
            )
            assert pending.status_code == 408
            assert pending.json()["queue_state_reason"] == "request 1 of this training run has not arrived"
            await call(server.http, "forward_backward", forward_body(model, 1, [DATUM], "ppo"))
            stepped = await fetch(server.http, step["request_id"])
            await call(server.http, "forward_backward", forward_body(other, 1, [DATUM], "ppo"))
            assert await call(server.http, "optim_step", step_body(other, 2)) == stepped

    asyncio.run(run())


def test_two_clients_train_at_once_and_do_not_affect_each_other(serve: Serve) -> None:
    async def train(server: Server, rank: int) -> dict[str, Tensor]:
        model = await create_run(server.http, rank=rank)
        for step in range(3):
            await post(server.http, "forward_backward", forward_body(model, 2 * step + 1, [DATUM], "ppo"))
            await call(server.http, "optim_step", step_body(model, 2 * step + 2))
        return weights_of(server, model)

    async def run() -> None:
        async with serve() as server:
            together = await asyncio.gather(train(server, 4), train(server, 2), train(server, 4))
            alone = [await train(server, 4), await train(server, 2)]
        for found, expected in zip(together, [*alone, alone[0]], strict=True):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)

    asyncio.run(run())


MALFORMED = {
    "an unknown loss": (forward_body("", 1, [DATUM], "gspo"), "cross_entropy, importance_sampling, ppo, cispo, dro"),
    "an unknown setting": (forward_body("", 1, [DATUM], "ppo", beta=1.0), "no setting 'beta'"),
    "a missing setting": (forward_body("", 1, [DATUM], "dro"), "needs 'beta'"),
    "a missing input": (forward_body("", 1, [datum(IDS, logprobs=SAMPLED)], "ppo"), "needs 'advantages'"),
    "an unread input": (forward_body("", 1, [datum(IDS, mask=SAMPLED)]), "does not read 'mask'"),
    "a short input": (forward_body("", 1, [datum(IDS, weights=[1.0])]), "not that of the targets"),
    "a wrong shape": (forward_body("", 1, [datum(IDS, weights=tensor([1.0] * 7, shape=[3]))]), "do not have the shape"),
    "a token outside the vocabulary": (forward_body("", 1, [datum([5, 9999, 6])]), "vocabulary"),
    "a sequence that is too long": (forward_body("", 1, [datum([5] * 130)]), "from 1 to 128"),
    "no token": (forward_body("", 1, [datum([5])]), "from 1 to 128"),
    "no datum": (forward_body("", 1, []), "at least 1"),
    "an image": (
        forward_body("", 1, [DATUM | {"model_input": {"chunks": [{"type": "image", "tokens": []}]}}]),
        "encoded_text",
    ),
    "an unknown field": (forward_body("", 1, [DATUM]) | {"priority": 1}, "priority"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_forward_backward_is_refused_and_changes_nothing(serve: Serve, case: str) -> None:
    async def run() -> None:
        body, reason = MALFORMED[case]
        async with serve() as server:
            model = await create_run(server.http)
            before = weights_of(server, model)
            refused = await server.http.post("/api/v1/forward_backward", json=body | {"model_id": model})
            assert refused.status_code == 400
            assert reason in refused.json()["detail"]
            # Its place in the order counts as taken. A step on the rest of the batch would be wrong.
            step = await call(server.http, "optim_step", step_body(model, 2))
            assert "no step was taken" in step["error"]
            after = weights_of(server, model)
            assert all(torch.equal(after[name], before[name]) for name in before)
            await call(server.http, "forward_backward", forward_body(model, 3, [DATUM], "ppo"))
            assert (await call(server.http, "optim_step", step_body(model, 4)))["metrics"]["grad_norm"] > 0

    asyncio.run(run())


def test_a_loss_that_is_not_finite_takes_no_step(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            before = weights_of(server, model)
            huge = datum(IDS, logprobs=[-1e5] * 7, advantages=ADVANTAGES)
            await call(server.http, "forward_backward", forward_body(model, 1, [DATUM], "ppo"))
            failed = await call(server.http, "forward_backward", forward_body(model, 2, [huge], "importance_sampling"))
            assert failed["category"] == "user"
            assert "error" in await call(server.http, "optim_step", step_body(model, 3))
            after = weights_of(server, model)
            assert all(torch.equal(after[name], before[name]) for name in before)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (
            "create_model",
            {"session_id": "unknown", "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4}},
            410,
        ),
        ("optim_step", step_body("unknown", 1), 404),
        ("retrieve_future", {"request_id": "unknown"}, 410),
        ("load_weights", {"model_id": "m", "seq_id": 1, "path": "tinker://../weights/x", "optimizer": True}, 404),
        ("load_weights", {"path": "tinker://a/weights/x", "optimizer": True}, 400),
        ("get_info", {}, 400),
        ("nothing", {}, 404),
    ],
)
def test_a_request_for_what_does_not_exist_is_refused(serve: Serve, path: str, body: Any, status: int) -> None:
    async def run() -> None:
        async with serve() as server:
            answer = await server.http.post(f"/api/v1/{path}", json=body)
            assert answer.status_code == status
            assert answer.json()["detail"]

    asyncio.run(run())


def test_the_base_model_and_the_adapter_are_checked(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            session = await open_session(server.http)
            good = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4}}
            nothing = {"rank": 4, "train_attn": False, "train_mlp": False, "train_unembed": False}
            for changed, reason in [
                ({"base_model": "Qwen/Qwen3-8B"}, "this server has 'tiny'"),
                ({"lora_config": {"rank": 0}}, "greater than or equal to 1"),
                ({"lora_config": nothing}, "trains nothing"),
                ({"optimizer_config": {"type": "dimuon"}}, "adamw"),
            ]:
                answer = await server.http.post("/api/v1/create_model", json=good | changed)
                assert answer.status_code == 400
                assert reason in answer.json()["detail"]
            attention = {**nothing, "train_attn": True}
            model = (await call(server.http, "create_model", good | {"lora_config": attention}))["model_id"]
            assert all("self_attn" in name for name in weights_of(server, model))

    asyncio.run(run())


def test_a_key_is_required_and_may_have_the_prefix_of_the_client(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            path = "/api/v1/get_server_capabilities"
            for key, status in [("", 401), ("tml-wrong", 401), (f"tml-{KEY}", 200), (KEY, 200)]:
                answer = await server.http.get(path, headers={"x-api-key": key})
                assert answer.status_code == status
            assert (await server.http.get("/api/v1/healthz", headers={"x-api-key": ""})).json() == {"status": "ok"}

    asyncio.run(run())


def test_a_body_that_cannot_be_read_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serve() as server:
            protobuf = {"content-type": "application/x-protobuf"}
            for content, headers in [
                (b"{", {}),
                (b"\xff" * 20, protobuf),
                (b"\x0a\xff\x01a", protobuf),
                (b"\x18\x01", protobuf),
            ]:
                answer = await server.http.post("/api/v1/forward_backward", content=content, headers=headers)
                assert answer.status_code == 400, content
            monkeypatch.setattr("sparring.serving.tinker.app.MOST_BYTES", 1000)
            large = await server.http.post("/api/v1/forward_backward", content=b"x" * 2000)
            assert large.status_code == 413

    asyncio.run(run())


def test_protocol_buffers_of_results_have_the_fields_that_clients_read() -> None:
    outputs = (
        TokenLogprobs(values=(-1.0, -2.0), shape=(2,)),
        TokenLogprobs(values=(-3.0, -4.0), shape=(1, 2)),
    )
    message = list(read_fields(ForwardResult(outputs=outputs, metrics={"loss:sum": 1.5}).as_protobuf()))
    # One record for each width of the targets, since a record has one trailing shape.
    assert [number for number, _ in message] == [1, 2, 2, 3]
    completion = Completion(
        token_ids=(1, 2),
        sampled_logprobs=(-1.0, -0.5),
        stop_reason=StopReason.LENGTH,
        versions=((0, 2),),
        fingerprint="",
        num_computed_tokens=2,
    )
    sample = SampleResult(completions=(completion,), prompt_logprobs=(math.nan, -1.0))
    assert [number for number, _ in read_fields(sample.as_protobuf())] == [1, 2]
    assert sample.as_json() == {
        "type": "sample",
        "sequences": [{"stop_reason": "length", "tokens": [1, 2], "logprobs": [-1.0, -0.5]}],
        "prompt_logprobs": [None, -1.0],
    }
