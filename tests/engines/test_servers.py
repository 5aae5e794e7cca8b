"""The engine over vLLM and SGLang servers: adapters by version, several servers, and every fault of a server."""

from __future__ import annotations

import asyncio
import math
import resource
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file

from sparring.config import validate
from sparring.engines.servers.client import ServerKind
from sparring.engines.servers.engine import ServersEngine
from sparring.engines.servers.sglang import SGLANG
from sparring.engines.servers.vllm import VLLM, remove_bias
from sparring.errors import (
    ConfigError,
    ConstraintError,
    DataError,
    DiskError,
    InfrastructureError,
    PolicyTimeout,
    ServiceError,
)
from sparring.models.adapter_files import write_adapter
from sparring.training.handshake import Handshake
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch
from sparring.types import Completion, Constraint, EngineCapabilities, SampleRequest, Sampling, StopReason
from sparring.web.listener import Listener
from tests.contracts.cases import ADAPTER, SLOW, STOP, TorchEngine, adapter_of, make_policy, slow_down, weights_of
from tests.contracts.sglang_routes import SMALLEST, SGLangRoutes
from tests.contracts.vllm_routes import VLLMRoutes

FIRST, SECOND = adapter_of(1), adapter_of(2)
TEXT = build_demonstration_batch([([3, 1, 4, 1, 5, 9], [False, False, True, True, True, True])])


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.engines.servers.engine._FIRST_PAUSE_SECONDS", 0.01)


class Kind(NamedTuple):
    """A kind of servers, and the servers of the tests with its routes."""

    kind: ServerKind
    routes: type[VLLMRoutes | SGLangRoutes]

    def __str__(self) -> str:
        return self.kind.name


VLLM_KIND, SGLANG_KIND = Kind(VLLM, VLLMRoutes), Kind(SGLANG, SGLangRoutes)


@pytest.fixture(params=[VLLM_KIND, SGLANG_KIND], ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


class Served:
    """An engine over servers that can be broken."""

    def __init__(self, engine: ServersEngine, servers: list[Any], listeners: list[Listener], folder: Path) -> None:
        self.engine, self.servers, self.listeners, self.folder = engine, servers, listeners, folder


@asynccontextmanager
async def serve(
    folder: Path,
    number: int = 1,
    faults: Mapping[str, Any] | None = None,
    *,
    has_adapters: bool = True,
    kind: Kind = VLLM_KIND,
    **settings: Any,
) -> AsyncIterator[Served]:
    weights = {"shape": ADAPTER, "weights": FIRST} if has_adapters else {"shape": None, "weights": weights_of(1)}
    async with AsyncExitStack() as opened:
        servers, listeners = [], []
        for _ in range(number):
            policy = make_policy(lora=has_adapters)
            engine = slow_down(TorchEngine(policy, policy.snapshot(), kv_cache_tokens=4096))
            opened.push_async_callback(engine.close)
            servers.append(kind.routes(engine, faults))
            listeners.append(Listener(servers[-1].app, "127.0.0.1", 0))
            await listeners[-1].start()
            opened.push_async_callback(listeners[-1].stop)
        urls = [one.base_url for one in listeners]
        settings = {"kind": kind.kind, "folder": folder / "run", **weights, **settings}
        client = await asyncio.to_thread(ServersEngine, urls, **settings)
        opened.push_async_callback(client.close)
        yield Served(client, servers, listeners, folder / "run")


def ask(prompt: tuple[int, ...] = (3, 1, 4), session_id: str = "s", **changes: Any) -> SampleRequest:
    settings = {name: changes.pop(name) for name in ("temperature", "top_p") if name in changes}
    sampling = Sampling(max_tokens=changes.pop("max_tokens", 6), **settings)
    values: dict[str, Any] = {"stop_ids": frozenset(), "seed": 5, **changes}
    return SampleRequest(session_id=session_id, prompt_ids=prompt, sampling=sampling, **values)


def run(folder: Path, scenario: Callable[[Served], Awaitable[Any]], number: int = 1, **settings: Any) -> Any:
    async def whole() -> Any:
        async with serve(folder, number, **settings) as served:
            return await scenario(served)

    return asyncio.run(whole())


def test_an_adapter_folder_is_what_peft_reads(tmp_path: Path) -> None:
    from peft import PeftModel

    write_adapter(FIRST, ADAPTER, tmp_path / "adapter")
    model = PeftModel.from_pretrained(make_policy().base, str(tmp_path / "adapter"))
    loaded = {name: tensor for name, tensor in model.state_dict().items() if "lora_" in name}
    assert loaded.keys() == FIRST.tensors.keys()
    assert all((loaded[name] == tensor).all() for name, tensor in FIRST.tensors.items())
    assert load_file(tmp_path / "adapter" / "adapter_model.safetensors").keys() == {
        name.replace(".default", "") for name in FIRST.tensors
    }


@pytest.mark.parametrize("has_adapters", [True, False], ids=["adapters", "all weights"])
def test_weights_cannot_be_written_while_their_folder_is_gone(tmp_path: Path, has_adapters: bool) -> None:
    async def scenario(served: Served) -> tuple[str, bool, Completion, Completion]:
        weights = SECOND if has_adapters else weights_of(2)
        await served.engine.sample(ask())
        served.folder.rename(tmp_path / "elsewhere")
        with pytest.raises(DiskError) as error:
            await served.engine.load_weights(weights, 1)
        is_recreated = served.folder.exists()
        during = await served.engine.sample(ask())
        (tmp_path / "elsewhere").rename(served.folder)
        await served.engine.load_weights(weights, 2)
        return str(error.value), is_recreated, during, await served.engine.sample(ask())

    message, is_recreated, during, after = run(tmp_path, scenario, has_adapters=has_adapters)
    assert str(tmp_path / "run") in message
    assert "its file system is mounted" in message
    assert not is_recreated  # on a disk that the servers do not see
    assert (during.versions[0][0], after.versions[0][0]) == (0, 2)


@pytest.mark.parametrize("has_adapters", [True, False], ids=["adapters", "all weights"])
def test_weights_that_do_not_fit_their_disk_are_a_disk_error_and_leave_nothing(
    tmp_path: Path, has_adapters: bool
) -> None:
    async def scenario(served: Served) -> tuple[str, list[str], list[str]]:
        before = sorted(path.name for path in served.folder.iterdir())
        limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            with pytest.raises(DiskError) as error:
                await served.engine.load_weights(SECOND if has_adapters else weights_of(2), 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        return str(error.value), before, sorted(path.name for path in served.folder.iterdir())

    message, before, after = run(tmp_path, scenario, has_adapters=has_adapters)
    assert "File too large" in message
    assert "has space" in message
    assert before == after


def test_a_server_that_cannot_read_the_folder_any_more_is_left_out(tmp_path: Path) -> None:
    async def scenario(served: Served) -> tuple[set[int], int, Mapping[str, float], str]:
        for session in "ab":
            await served.engine.sample(ask(session_id=session))
        # vLLM answers 404 if there is no such folder.
        served.servers[0].faults["/v1/load_lora_adapter"] = 404
        await served.engine.load_weights(SECOND, 1)
        before = served.servers[0].num_turns
        turns = [await served.engine.sample(ask(session_id=session)) for session in "abc"]
        num_turns, metrics = served.servers[0].num_turns - before, served.engine.metrics()
        served.servers[1].faults["/v1/load_lora_adapter"] = 404
        with pytest.raises(ServiceError) as error:
            await served.engine.load_weights(FIRST, 2)
        return {one.versions[0][0] for one in turns}, num_turns, metrics, str(error.value)

    versions, num_turns, metrics, message = run(tmp_path, scenario, number=2)
    assert (versions, num_turns, metrics["engine/servers_up"]) == ({1}, 0, 0.5)
    assert "no vLLM server loaded the weights" in message
    assert "It must read this folder" in message


def test_a_turn_that_runs_keeps_its_adapter_and_an_unused_adapter_is_removed(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> tuple[Completion, Completion, list[str], list[str]]:
        slow = asyncio.create_task(served.engine.sample(ask((SLOW, 1), max_tokens=5)))
        while not served.servers[0].num_turns:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await served.engine.load_weights(SECOND, 1)
        during = sorted(path.name for path in served.folder.iterdir())
        quick = await served.engine.sample(ask(session_id="other"))
        first = await slow
        await served.engine.load_weights(FIRST, 2)
        return first, quick, during, sorted(path.name for path in served.folder.iterdir())

    first, quick, during, after = run(tmp_path, scenario, kind=kind)
    assert (first.versions, first.fingerprint) == (((0, 5),), FIRST.fingerprint)
    assert (quick.versions, quick.fingerprint) == (((1, 6),), SECOND.fingerprint)
    assert [name.split("-")[1] for name in during] == ["0", "1"]
    assert [name.split("-")[1] for name in after] == ["2"]


def test_sessions_are_spread_over_the_servers_and_stay_there(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> list[list[int]]:
        counts = []
        for _ in range(2):
            for number in range(6):
                await served.engine.sample(ask(session_id=f"s{number}"))
            counts.append([server.num_turns for server in served.servers])
        return counts

    once, twice = run(tmp_path, scenario, 2, kind=kind)
    assert once == [4, 4]  # each server answered one turn when it was connected
    assert twice == [7, 7]


def test_a_server_that_dies_costs_no_turn(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> tuple[list[Completion], dict[str, float], int]:
        await served.engine.sample(ask(session_id="a"))
        await served.listeners[0].stop()
        turns = await asyncio.gather(*(served.engine.sample(ask(session_id=name)) for name in "abcd"))
        metrics = served.engine.metrics()
        await served.engine.load_weights(SECOND, 1)  # the server that is left is enough
        return turns, metrics, (await served.engine.sample(ask())).versions[0][0]

    turns, metrics, version = run(tmp_path, scenario, 2, kind=kind)
    assert [turn.fingerprint for turn in turns] == [FIRST.fingerprint] * 4
    assert metrics["engine/servers_up"] == 0.5
    assert metrics["engine/retried_turns"] >= 1
    assert version == 1


def test_a_server_that_was_started_again_gets_its_adapter_again(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> Completion:
        await served.engine.sample(ask())
        served.servers[0].faults = {"forgets": True}
        return await served.engine.sample(ask())

    assert run(tmp_path, scenario, kind=kind).fingerprint == FIRST.fingerprint


@pytest.mark.parametrize(
    ("kind", "faults", "message"),
    [
        (VLLM_KIND, {"errors": 99}, "status 500"),
        (VLLM_KIND, {"no_logprobs": True}, "no valid log-probability"),
        (VLLM_KIND, {"broken_logprobs": True}, "no valid log-probability"),
        (VLLM_KIND, {"aborts": True}, "'abort'"),
        (SGLANG_KIND, {"errors": 99}, "status 503"),
        (SGLANG_KIND, {"no_logprobs": True}, "no valid log-probability"),
        (SGLANG_KIND, {"last_logprob": [None, 9, None]}, "no valid log-probability"),  # NaN
        (SGLANG_KIND, {"last_logprob": [SMALLEST, 9, None]}, "no valid log-probability"),
        (SGLANG_KIND, {"last_logprob": [-1.0, 60, None]}, "no valid log-probability"),  # not the sampled token
        (SGLANG_KIND, {"not_a_number": True}, "no valid log-probability"),
        (SGLANG_KIND, {"aborts": True}, "'abort'"),
    ],
    ids=str,
)
def test_a_turn_without_an_exact_answer_is_an_infrastructure_failure(
    tmp_path: Path, kind: Kind, faults: dict[str, Any], message: str
) -> None:
    async def scenario(served: Served) -> None:
        served.servers[0].faults = dict(faults)
        with pytest.raises(InfrastructureError, match=message):
            await served.engine.sample(ask())

    run(tmp_path, scenario, kind=kind)


def test_a_few_errors_are_retried(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> Completion:
        served.servers[0].faults = {"errors": 2}
        return await served.engine.sample(ask())

    assert len(run(tmp_path, scenario, kind=kind).token_ids) == 6


def test_a_stream_that_breaks_off_is_not_sampled_again(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> list[int]:
        tokens: list[int] = []
        served.servers[0].faults = {"truncates_after": 2}
        with pytest.raises(InfrastructureError):
            await served.engine.sample(ask(), tokens.append)
        return tokens

    assert len(run(tmp_path, scenario, kind=kind)) == 2


def test_the_policy_s_slowness_and_the_server_s_are_different_failures(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> None:
        with pytest.raises(PolicyTimeout):
            await served.engine.sample(ask((SLOW, 1), max_tokens=50, deadline=time.monotonic() + 0.5))
        turn = asyncio.create_task(served.engine.sample(ask((SLOW, 1), max_tokens=50, deadline=time.monotonic() + 1.0)))
        await asyncio.sleep(0.3)
        await served.listeners[0].stop()
        with pytest.raises(InfrastructureError):
            await turn

    run(tmp_path, scenario, kind=kind)


def test_a_server_with_other_weights_differs_in_the_scores(tmp_path: Path, kind: Kind) -> None:
    """The handshake after each step compares these scores with the learner's."""

    async def scenario(served: Served) -> tuple[list[float], list[float]]:
        ids = (3, 1, 4, 1, 5, 9)
        right = await served.engine.logprobs(ids)
        served.servers[0].faults = {"wrong_adapter": True}
        await served.engine.load_weights(FIRST, 1)
        return right, await served.engine.logprobs(ids)

    right, wrong = run(tmp_path, scenario, kind=kind)
    assert right != pytest.approx(wrong, abs=0.1)


def test_servers_with_different_weights_are_named(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> None:
        served.servers[1].faults = {"wrong_adapter": True}
        await served.engine.load_weights(SECOND, 1)
        with pytest.raises(ServiceError, match=".*".join(one.base_url.removesuffix("/v1") for one in served.listeners)):
            await served.engine.logprobs((3, 1, 4, 1, 5, 9))

    run(tmp_path, scenario, 2, kind=kind)


def freeze(server: Any) -> Any:
    """Return other weights, in the form in which the server keeps its adapters."""
    return server.engine.keep(adapter_of(7), 0)


def check_after_two_steps(served: Served, faulty: Callable[[int], None]) -> Awaitable[dict[str, float]]:
    """Publish two versions, and compare servers and learner after each; `faulty` is called before each comparison."""

    async def steps() -> dict[str, float]:
        learner = TorchLearner(make_policy(lora=True))
        handshake, found = Handshake(served.engine, learner), dict[str, float]()
        for step, weights in enumerate((SECOND, FIRST), 1):
            learner.load_weights(weights)
            await served.engine.load_weights(weights, step)
            faulty(step)
            found = await handshake.check(weights, step, TEXT)
        return found

    return steps()


@pytest.mark.parametrize("fault", ["other weights", "the weights of the step before"])
def test_a_server_with_other_weights_is_taken_out_and_named(
    tmp_path: Path, kind: Kind, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(served: Served) -> tuple[dict[str, float], dict[str, float], list[int]]:
        second, published = served.servers[1], list[Any]()

        def damage(step: int) -> None:
            newest = [*second.adapters][-1]
            published.append(second.adapters[newest])
            if step == 2:
                second.adapters[newest] = published[0] if fault != "other weights" else freeze(second)

        found = await check_after_two_steps(served, damage)
        begun = [one.num_turns for one in served.servers]
        for number in range(4):
            await served.engine.sample(ask(session_id=f"s{number}"))
        return (
            found,
            served.engine.metrics(),
            [one.num_turns - was for one, was in zip(served.servers, begun, strict=True)],
        )

    caplog.set_level("WARNING", "sparring")
    found, metrics, num_turns = run(tmp_path, scenario, 2, kind=kind)
    assert found["training/probe_difference"] < 1e-3
    assert metrics["engine/servers_up"] == 0.5
    assert num_turns == [4, 0]
    (line,) = [one.message for one in caplog.records if "has other weights" in one.message]
    assert line.startswith(f"the {kind.kind.name} server at http")


def test_a_run_ends_if_every_server_has_other_weights(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> None:
        def damage(step: int) -> None:
            for server in served.servers if step == 2 else ():
                server.adapters[[*server.adapters][-1]] = freeze(server)

        with pytest.raises(ServiceError, match="after step 2 engine and learner differ"):
            await check_after_two_steps(served, damage)
        assert served.engine.metrics()["engine/servers_up"] == 1.0

    run(tmp_path, scenario, 2, kind=kind)


def test_an_adapter_stays_while_a_turn_waits_for_its_next_attempt(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.engines.servers.engine._FIRST_PAUSE_SECONDS", 1.0)

    async def scenario(served: Served) -> Completion:
        served.servers[0].faults = {"errors": 1}
        turn = asyncio.create_task(served.engine.sample(ask()))
        await asyncio.sleep(0.4)
        await served.engine.load_weights(SECOND, 1)
        return await turn

    assert run(tmp_path, scenario, kind=kind).fingerprint == FIRST.fingerprint


def test_one_server_that_cannot_load_weights_does_not_end_the_run(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> Completion:
        served.servers[0].faults = {"load_errors": 1}
        await served.engine.load_weights(SECOND, 1)
        return await served.engine.sample(ask())

    assert run(tmp_path, scenario, 2, kind=kind).fingerprint == SECOND.fingerprint


def test_time_that_a_server_lost_is_not_the_policy_s(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> None:
        served.servers[0].faults = {"errors": 1}
        with pytest.raises(InfrastructureError, match=r"status 50[03]"):
            await served.engine.sample(ask((SLOW, 1), max_tokens=50, deadline=time.monotonic() + 1.0))

    run(tmp_path, scenario, kind=kind)


def test_closing_unloads_the_adapters_and_removes_the_folders(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> list[Any]:
        await served.engine.sample(ask())
        return served.servers

    (server,) = run(tmp_path, scenario, kind=kind)
    assert server.adapters == {}
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(("probability", "bias"), [(0.9, 0.0), (0.04, 10.0), (1e-6, 10.0), (1e-8, 20.0), (1e-30, 70.0)])
def test_a_bias_is_removed_from_a_log_probability(probability: float, bias: float) -> None:
    raised = probability * math.exp(bias)
    biased = math.log(raised / (1 - probability + raised))
    assert remove_bias(biased, bias) == pytest.approx(math.log(probability), abs=1e-4)


def test_what_cannot_be_exact_is_refused(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        with pytest.raises(DataError, match=r"at least 0\.01"):
            await served.engine.sample(ask(temperature=0.005))
        with pytest.raises(DataError, match="context length"):
            await served.engine.sample(ask(tuple(range(8, 58)) * 3))

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("constraint", "stop_ids", "message"),
    [
        (Constraint(grammar="start: nothing"), {STOP}, "refused the grammar of an answer: .*nothing"),
        (
            Constraint(grammar="start: @a", schemas=(("a", '{"not": {}}'),)),
            {STOP},
            r'refused the grammar.*\[.*"not(?s:.*)llguidance supports',
        ),
        (Constraint(grammar='start: "a"'), set(), "no stop id"),
    ],
)
def test_a_grammar_that_a_server_refuses_is_not_a_failure_of_the_server(
    tmp_path: Path, constraint: Constraint, stop_ids: set[int], message: str, is_streamed: bool
) -> None:
    async def scenario(served: Served) -> dict[str, float]:
        tokens: list[int] = []
        asked = ask(constraint=constraint, stop_ids=frozenset(stop_ids))
        with pytest.raises(ConstraintError, match=message):
            await served.engine.sample(asked, tokens.append if is_streamed else None)
        assert tokens == []
        await served.engine.sample(ask())
        return served.engine.metrics()

    assert run(tmp_path, scenario) == {"engine/retried_turns": 0.0, "engine/servers_up": 1.0}


def test_an_answer_whose_grammar_is_given_up_is_refused(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        asked = ask(constraint=Constraint(grammar='start: "ab"'), stop_ids=frozenset({STOP}))
        assert (await served.engine.sample(asked)).token_ids[-1] == STOP
        assert (await served.engine.sample(replace(asked, stop_ids=frozenset({0, STOP})))).token_ids[-1] in (0, STOP)
        served.servers[0].faults["gives_up"] = True
        with pytest.raises(ConstraintError, match="could not continue the grammar"):
            await served.engine.sample(asked)

    run(tmp_path, scenario)


def test_a_smaller_top_p_reports_the_log_probabilities_of_the_tokens_that_are_left(tmp_path: Path) -> None:
    async def scenario(served: Served) -> Completion:
        return await served.engine.sample(ask(top_p=1e-6))

    # One token is left at each place, with probability 1.
    assert run(tmp_path, scenario).sampled_logprobs == pytest.approx([0.0] * 6, abs=1e-6)


@pytest.mark.parametrize(
    ("route", "status", "message"),
    [
        ("/v1/load_lora_adapter", 404, "loads no adapters while it runs.*--enable-lora"),
        ("/inference/v1/generate", 403, "--enable-scale-out"),
        ("/v1/models", 401, "key"),
    ],
)
def test_a_server_without_a_setting_is_refused_with_the_command_that_starts_it(
    tmp_path: Path, route: str, status: int, message: str
) -> None:
    with pytest.raises(ServiceError, match=message):
        run(tmp_path, nothing, faults={route: status})


def test_log_probabilities_before_the_temperature_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="processed_logprobs"):
        run(tmp_path, nothing, faults={"raw_logprobs": True})


async def nothing(served: Served) -> None:
    """Connect, and do nothing else."""


def recipe(*overrides: str) -> Any:
    places = ["engine.type=vllm", "engine.base_urls=['http://a:8000','http://b:8000']"]
    return validate({"environment": {"target": "a:B"}, "reward": {"reward": "a:b"}}, [*places, *overrides])


def test_a_recipe_with_vllm_is_trainable_and_corrects_for_other_kernels() -> None:
    config = recipe("rollout.max_steps_off_policy=0")
    assert config.is_trainable
    assert not config.runs_in_rounds
    assert config.off_policy_correction == recipe("rollout.max_steps_off_policy=2").off_policy_correction != "none"
    assert config.engine_capabilities == EngineCapabilities(
        reports_token_ids=True,
        holds_several_weights=True,
        pins_weights=True,
        constrained_sampling=True,
        scores_given_ids=True,
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.deterministic=true", "cannot sample in rounds"),
        ("engine.num_servers=2", "engine.num_servers: is for servers that are started on this machine"),
        ("engine.base_urls=['ftp://a']", "has an item that is 'ftp://a'"),
        ("engine.kv_cache_tokens=1024", "engine.kv_cache_tokens"),
    ],
)
def test_settings_that_do_not_fit_vllm_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe(override)


def test_a_stop_id_ends_a_turn(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> tuple[Completion, Completion]:
        whole = await served.engine.sample(ask())
        return whole, await served.engine.sample(ask(stop_ids=frozenset({whole.token_ids[2]})))

    whole, stopped = run(tmp_path, scenario, kind=kind)
    assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(whole.token_ids[2]) + 1]
    assert stopped.stop_reason is StopReason.STOP


def test_without_addresses_a_run_starts_servers_and_has_no_key_for_them() -> None:
    settings = ["engine.type=vllm", "engine.num_servers=2", "engine.server_arguments=['--gpu-memory-utilization=0.4']"]
    given = {"environment": {"target": "a:B"}, "reward": {"reward": "a:b"}}
    assert validate(given, settings).engine.num_servers == 2
    with pytest.raises(ConfigError, match=r"engine\.api_key_env: is for running servers"):
        validate(given, [*settings, "engine.api_key_env=KEY"])
