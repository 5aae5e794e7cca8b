"""What is special about SGLang servers: their settings, their own stop ids, and errors inside a stream.

`test_servers.py` has what all kinds of servers share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sparring.config import validate
from sparring.engines.servers.engine import ServersEngine
from sparring.engines.servers.sglang import SGLANG
from sparring.errors import ConfigError, ConstraintError, DataError, InfrastructureError, ServiceError
from sparring.types import Completion, Constraint, EngineCapabilities, StopReason
from tests.contracts.cases import LETTERS
from tests.contracts.sglang_routes import EOS
from tests.engines.test_servers import FIRST, SECOND, SGLANG_KIND, Served, ask, nothing
from tests.engines.test_servers import run as run_served


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.engines.servers.engine._FIRST_PAUSE_SECONDS", 0.01)


def run(folder: Path, scenario: Callable[[Served], Awaitable[Any]], **settings: Any) -> Any:
    return run_served(folder, scenario, kind=SGLANG_KIND, **settings)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"enable_lora": None}, "enable_lora = None.*--enable-lora"),
        ({"incremental_streaming_output": False}, "--incremental-streaming-output"),
        ({"allow_auto_truncate": True}, "allow_auto_truncate = True"),
        ({"preferred_sampling_params": {"min_p": 0.1}}, "preferred_sampling_params = {'min_p': 0.1}"),
        ({"dp_size": 2}, "dp_size = 2, but sampling needs 1"),
    ],
    ids=str,
)
def test_a_server_without_a_setting_is_refused(tmp_path: Path, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        run(tmp_path, nothing, faults={"settings": setting})


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"/server_info": 401}, "Check address and key"),
        ({"/generate": 403}, "status 403 to token ids.*launch_server"),
        ({"settings": {"max_req_input_len": None}}, "does not answer as SGLang 0.5.23 does"),
        ({"raw_logprobs": True}, "before the temperature is applied.*launch_server"),
    ],
    ids=str,
)
def test_a_server_that_cannot_sample_exactly_is_refused(tmp_path: Path, faults: dict[str, Any], message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        run(tmp_path, nothing, faults=faults)


def test_an_adapter_that_the_server_refuses_ends_the_run(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        served.servers[0].faults = {"refuses_adapter": True}
        with pytest.raises(ServiceError, match=r"incompatible with the current LoRA memory pool.*--max-lora-rank"):
            await served.engine.load_weights(SECOND, 1)

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_turn_goes_on_after_a_stop_id_that_is_only_the_model_s(tmp_path: Path, is_streamed: bool) -> None:
    """A server ends turns with the stop ids of its model, too, if the request has any of its own."""

    async def scenario(served: Served) -> tuple[list[Completion], list[list[int]], list[float]]:
        found, streams = [], []
        for seed in range(40):
            tokens: list[int] = []
            request = ask(seed=seed, session_id=f"s{seed}", stop_ids=frozenset({9}), max_tokens=40)
            found.append(await served.engine.sample(request, tokens.append if is_streamed else None))
            streams.append(tokens)
        one = next(one for one in found if EOS in one.token_ids[:-1])
        scores = await served.engine.logprobs([3, 1, 4, *one.token_ids])
        assert scores[2:] == pytest.approx(one.sampled_logprobs, abs=1e-4)
        assert one.versions == ((0, len(one.token_ids)),)
        return found, streams, scores

    found, streams, _ = run(tmp_path, scenario)
    assert sum(EOS in one.token_ids[:-1] for one in found) > 3
    for one in found:
        assert 9 not in one.token_ids[:-1]
        is_stopped = one.token_ids[-1] == 9
        assert one.stop_reason is (StopReason.STOP if is_stopped else StopReason.LENGTH)
        assert is_stopped or len(one.token_ids) == 40
    assert not is_streamed or [tuple(tokens) for tokens in streams] == [one.token_ids for one in found]


def test_without_stop_ids_of_its_own_a_turn_ignores_the_model_s(tmp_path: Path) -> None:
    async def scenario(served: Served) -> list[Completion]:
        return [await served.engine.sample(ask(seed=seed, max_tokens=40)) for seed in range(20)]

    found = run(tmp_path, scenario)
    assert {len(one.token_ids) for one in found} == {40}
    assert any(EOS in one.token_ids[:-1] for one in found)


def test_a_stop_text_ends_a_turn(tmp_path: Path) -> None:
    async def scenario(served: Served) -> tuple[Completion, Completion, str]:
        whole = await served.engine.sample(ask(max_tokens=20, stop_ids=frozenset({EOS})))
        letter = LETTERS.decode([next(one for one in whole.token_ids[1:] if one > EOS)])
        return whole, await served.engine.sample(ask(stop_ids=frozenset({EOS}), stop_texts=(letter,))), letter

    whole, stopped, letter = run(tmp_path, scenario)
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert LETTERS.decode(stopped.token_ids[-1:]) == letter
    assert stopped.stop_reason is StopReason.STOP


def test_a_smaller_top_p_reports_the_log_probabilities_of_all_tokens(tmp_path: Path) -> None:
    async def scenario(served: Served) -> tuple[Completion, list[float]]:
        turn = await served.engine.sample(ask(top_p=0.3))
        return turn, await served.engine.logprobs([3, 1, 4, *turn.token_ids])

    turn, scores = run(tmp_path, scenario)
    assert turn.sampled_logprobs == pytest.approx(scores[2:], abs=1e-4)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_cannot_be_exact_is_refused(tmp_path: Path, is_streamed: bool) -> None:
    """An error in a stream has the status that the answer would have without a stream."""

    async def scenario(served: Served) -> list[int]:
        tokens: list[int] = []
        on_token = tokens.append if is_streamed else None
        with pytest.raises(ConstraintError, match=r"SGLang servers.*without a grammar"):
            await served.engine.sample(ask(constraint=Constraint(grammar='start: "a"')), on_token)
        with pytest.raises(DataError, match="longer than the maximum"):
            await served.engine.sample(ask(tuple(range(8, 58)) * 3), on_token)
        return tokens

    assert run(tmp_path, scenario) == []


def test_a_stream_loads_the_adapter_again_on_a_server_that_was_started_again(tmp_path: Path) -> None:
    async def scenario(served: Served) -> tuple[Completion, list[int]]:
        tokens: list[int] = []
        await served.engine.sample(ask())
        served.servers[0].faults = {"forgets": True}
        return await served.engine.sample(ask(), tokens.append), tokens

    turn, tokens = run(tmp_path, scenario)
    assert (turn.fingerprint, turn.token_ids) == (FIRST.fingerprint, tuple(tokens))


def test_a_stream_that_ends_with_an_abort_is_an_infrastructure_failure(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        served.servers[0].faults = {"aborts": True}
        with pytest.raises(InfrastructureError, match="'abort'"):
            await served.engine.sample(ask(), lambda token: None)

    run(tmp_path, scenario)


def test_all_weights_are_refused() -> None:
    with pytest.raises(DataError, match="SGLang servers cannot get all weights"):
        ServersEngine(["http://127.0.0.1:1"], shape=None, kind=SGLANG)


def recipe(*overrides: str) -> Any:
    places = ["engine.type=sglang", "engine.base_urls=['http://a:30000','http://b:30000']"]
    return validate({"environment": {"target": "a:B"}, "reward": {"reward": "a:b"}}, [*places, *overrides])


def test_a_recipe_with_sglang_is_trainable_and_corrects_for_other_kernels() -> None:
    config = recipe("rollout.max_steps_off_policy=0")
    assert config.is_trainable
    assert not config.runs_in_rounds
    assert config.off_policy_correction == recipe("rollout.max_steps_off_policy=2").off_policy_correction != "none"
    assert config.engine_capabilities == EngineCapabilities(
        reports_token_ids=True, holds_several_weights=True, pins_weights=True, scores_given_ids=True
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.base_urls=[]", "a run starts no SGLang servers; add the addresses"),
        ("engine.num_servers=2", "does not read it"),
        ("engine.deterministic=true", "cannot sample in rounds"),
        ("engine.base_urls=['ftp://a']", "has an item that is 'ftp://a'"),
        ("model.trained_weights=full", "'sglang' gets only adapters"),
    ],
)
def test_settings_that_do_not_fit_sglang_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe(override)
