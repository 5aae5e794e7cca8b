"""Clients sample with the weights that they name, and get the log-probabilities of what they sampled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from tests.serving.tinker.calls import call, create_run, datum, forward_body, open_session, post, step_body
from tests.serving.tinker.conftest import Serve, Server
from tests.serving.tinker.test_training import reference_module, target_logprobs
from tests.serving.tinker.values import IDS

PROMPT = {"chunks": [{"type": "encoded_text", "tokens": IDS}]}
GREEDY = {"temperature": 0.0, "max_tokens": 6}


async def create_sampler(server: Server, session: str, number: int = 0, **source: str) -> str:
    body = {"session_id": session, "sampling_session_seq_id": number, **(source or {"base_model": "tiny"})}
    return (await post(server.http, "create_sampling_session", body))["sampling_session_id"]


async def sample(server: Server, sampler: str, seq: int, params: dict[str, Any], **settings: Any) -> dict[str, Any]:
    body = {"sampling_session_id": sampler, "seq_id": seq, "prompt": PROMPT, "sampling_params": params, **settings}
    return await call(server.http, "asample", body)


async def train(server: Server, run: str, first: int = 1) -> None:
    await call(server.http, "forward_backward", forward_body(run, first, [datum(IDS)]))
    await call(server.http, "optim_step", step_body(run, first + 1, learning_rate=0.003))


def test_samples_follow_the_seed_and_have_their_log_probabilities(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            sampler = await create_sampler(server, await open_session(server.http))
            params = {"max_tokens": 6, "temperature": 0.7, "seed": 5, "stop": []}
            first, again, other = [
                await sample(server, sampler, number, params | change, num_samples=3)
                for number, change in enumerate(({}, {}, {"seed": 6}))
            ]
            assert first["sequences"] == again["sequences"] != other["sequences"]
            # The samples of one request differ.
            assert len({tuple(one["tokens"]) for one in first["sequences"]}) == 3
            module = reference_module()
            for one in first["sequences"]:
                assert one["stop_reason"] == "length"
                logits = module(torch.tensor([IDS + one["tokens"]])).logits[0, len(IDS) - 1 : -1] / 0.7
                expected = logits.log_softmax(-1)[range(6), one["tokens"]]
                assert one["logprobs"] == pytest.approx(expected.tolist(), abs=1e-4)

    asyncio.run(run())


def test_prompt_log_probabilities_are_those_of_the_learner(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            sampler = await create_sampler(server, await open_session(server.http))
            expected = target_logprobs(reference_module()).tolist()
            whole = await sample(server, sampler, 0, {"max_tokens": 1}, prompt_logprobs=True)
            assert whole["prompt_logprobs"][0] is None
            assert whole["prompt_logprobs"][1:] == pytest.approx(expected, abs=1e-4)
            last = await sample(server, sampler, 1, {"max_tokens": 1}, prompt_logprobs=True, prompt_logprobs_last_n=2)
            assert last["prompt_logprobs"][:-2] == [None] * 6
            assert last["prompt_logprobs"][-2:] == pytest.approx(expected[-2:], abs=1e-4)

    asyncio.run(run())


def test_an_answer_ends_with_the_token_that_completes_a_stop(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            sampler = await create_sampler(server, await open_session(server.http))
            free = (await sample(server, sampler, 0, GREEDY | {"stop": []}))["sequences"][0]["tokens"]
            text = server.service.base.tokenizer.decode(free[2:3])
            place = free.index(free[2])
            for number, stop in enumerate(([free[2]], text, [text]), 1):
                stopped = (await sample(server, sampler, number, GREEDY | {"stop": stop}))["sequences"][0]
                assert stopped["tokens"] == free[: place + 1]
                assert stopped["stop_reason"] == "stop"

    asyncio.run(run())


def test_only_the_most_likely_tokens_are_sampled_with_top_k(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            sampler = await create_sampler(server, await open_session(server.http))
            likely = reference_module()(torch.tensor([IDS])).logits[0, -1].topk(2)
            params = {"max_tokens": 1, "top_k": 2, "seed": 1, "stop": []}
            found = (await sample(server, sampler, 0, params, num_samples=64))["sequences"]
            assert {one["tokens"][0] for one in found} == set(likely.indices.tolist())
            odds = likely.values.log_softmax(-1).tolist()
            expected = dict(zip(likely.indices.tolist(), odds, strict=True))
            assert all(one["logprobs"] == pytest.approx([expected[one["tokens"][0]]], abs=1e-4) for one in found)

    asyncio.run(run())


def test_samplers_keep_the_weights_they_were_created_with(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            session = await open_session(server.http)
            model = await create_run(server.http, session=session)
            base = await create_sampler(server, session, 9)
            await train(server, model)
            saved = {"model_id": model, "seq_id": 3, "sampling_session_seq_id": 1}
            first = (await call(server.http, "save_weights_for_sampler", saved))["sampling_session_id"]
            named = await call(server.http, "save_weights_for_sampler", {"model_id": model, "seq_id": 4, "path": "one"})
            await train(server, model, 5)
            newest = {"model_id": model, "seq_id": 7, "sampling_session_seq_id": 2, "kind": "inflight"}
            inflight = (await call(server.http, "save_weights_for_sampler", newest))["sampling_session_id"]
            of_path = await create_sampler(server, session, 3, model_path=named["path"])
            scored = {"max_tokens": 1}
            found = {
                sampler: (await sample(server, sampler, 0, scored, prompt_logprobs=True))["prompt_logprobs"][1:]
                for sampler in (base, first, of_path, inflight)
            }
            assert found[first] == found[of_path]
            assert sum(found[base]) < sum(found[first]) < sum(found[inflight])
            # An inflight sampler follows what is published later.
            await train(server, model, 8)
            published = newest | {"seq_id": 10, "sampling_session_seq_id": 4}
            await call(server.http, "save_weights_for_sampler", published)
            later = (await sample(server, inflight, 1, scored, prompt_logprobs=True))["prompt_logprobs"][1:]
            assert sum(found[inflight]) < sum(later)

    asyncio.run(run())


def test_weights_that_are_no_longer_in_memory_are_never_replaced_by_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr("sparring.serving.tinker.service.MOST_ADAPTERS", 1)
        async with serve() as server:
            session = await open_session(server.http)
            model = await create_run(server.http, session=session)
            samplers = []
            for number in (1, 2):
                body = {"model_id": model, "seq_id": number, "sampling_session_seq_id": number}
                samplers.append((await call(server.http, "save_weights_for_sampler", body))["sampling_session_id"])
            assert "sequences" in await sample(server, samplers[1], 0, {"max_tokens": 1})
            body = {"sampling_session_id": samplers[0], "seq_id": 0, "prompt": PROMPT, "sampling_params": {}}
            assert (await server.http.post("/api/v1/asample", json=body)).status_code == 410

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"top_k": 0}}, "top_k"),
        ({"sampling_params": {"min_p": 0.1}}, "min_p"),
        (
            {"topk_prompt_logprobs": 5},
            "topk_prompt_logprobs: 5 is given, but this server computes the log-probabilities of the",
        ),
        ({"num_samples": 0}, "num_samples"),
        ({"prompt": {"chunks": []}}, "no token"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1] * 200}]}}, "leave no space"),
        ({"seq_id": None}, "seq_id"),
    ],
)
def test_a_request_that_cannot_be_sampled_is_refused(serve: Serve, change: dict[str, Any], reason: str) -> None:
    async def run() -> None:
        async with serve() as server:
            sampler = await create_sampler(server, await open_session(server.http))
            body = {"sampling_session_id": sampler, "seq_id": 0, "prompt": PROMPT, "sampling_params": {}}
            answer = await server.http.post("/api/v1/asample", json=body | change)
            assert answer.status_code == 400
            assert reason in answer.json()["detail"]

    asyncio.run(run())


def test_a_cancelled_request_frees_the_engine(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            sampler = await create_sampler(server, await open_session(server.http))
            body = {"sampling_session_id": sampler, "seq_id": 0, "prompt": PROMPT, "num_samples": 64}
            started = await post(server.http, "asample", body | {"sampling_params": {"max_tokens": 119, "stop": []}})
            cancelled = await server.http.post("/api/v1/cancel_future", json={"request_id": started["request_id"]})
            assert cancelled.status_code == 204
            answer = await server.http.post("/api/v1/retrieve_future", json={"request_id": started["request_id"]})
            assert "error" in answer.json()

    asyncio.run(run())


def test_a_prompt_that_fills_the_context_is_scored_but_not_continued(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            ids = [5 + place % 40 for place in range(server.service.base.max_tokens)]
            body = {"prompt": {"chunks": [{"tokens": ids}]}, "sampling_params": {"max_tokens": 1}, "base_model": "tiny"}
            assert (await server.http.post("/api/v1/asample", json=body)).status_code == 400
            found = await call(server.http, "asample", {**body, "prompt_logprobs": True})
            assert found["sequences"] == [{"stop_reason": "length", "tokens": [], "logprobs": []}]
            shorter = {**body, "prompt": {"chunks": [{"tokens": ids[:-1]}]}, "prompt_logprobs": True}
            expected = (await call(server.http, "asample", shorter))["prompt_logprobs"]
            assert found["prompt_logprobs"][1:-1] == pytest.approx(expected[1:], abs=1e-5)
            longer = {**body, "prompt": {"chunks": [{"tokens": [*ids, 5]}]}, "prompt_logprobs": True}
            assert (await server.http.post("/api/v1/asample", json=longer)).status_code == 400

    asyncio.run(run())
