"""The engine over vLLM servers whose weights are replaced by each version, because all weights are trained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sparring.engines.servers.environment import PLUGIN
from sparring.engines.servers.processes import ServerSettings, build_arguments
from sparring.errors import ConfigError, DataError, InfrastructureError, ServiceError
from sparring.types import Completion
from tests.contracts.cases import weights_of
from tests.engines.test_servers import Served, ask, nothing, recipe
from tests.engines.test_servers import run as run_served

FIRST, SECOND = weights_of(1), weights_of(2)
IDS = (3, 1, 4, 1, 5, 9)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.engines.servers.engine._FIRST_PAUSE_SECONDS", 0.01)


def run(folder: Path, scenario: Callable[[Served], Awaitable[Any]], number: int = 1, **settings: Any) -> Any:
    return run_served(folder, scenario, number, has_adapters=False, **settings)


def test_each_version_has_a_salt_of_its_own_and_only_the_newest_has_a_file(tmp_path: Path) -> None:
    async def scenario(served: Served) -> tuple[list[str | None], list[list[str]]]:
        files = []
        for version, weights in enumerate((FIRST, SECOND)):
            if version:
                await served.engine.load_weights(weights, version)
            turns = [await served.engine.sample(ask()) for _ in range(2)]
            assert [(one.versions, one.fingerprint) for one in turns] == [(((version, 6),), weights.fingerprint)] * 2
            files.append(sorted(path.name for path in served.folder.iterdir()))
        return served.servers[0].salts[1:], files  # the first turn was that of the check

    salts, files = run(tmp_path, scenario)
    assert salts == [name for names in files for name in names * 2]
    assert [[name.split("-")[0] for name in names] for names in files] == [["0"], ["1"]]
    assert list((tmp_path / "run").iterdir()) == []  # after close


def test_a_turn_that_starts_during_an_update_waits_for_it(tmp_path: Path) -> None:
    async def scenario(served: Served) -> tuple[Completion, int]:
        await served.engine.sample(ask())
        served.servers[0].faults = {"update_seconds": 0.5}
        update = asyncio.create_task(served.engine.load_weights(SECOND, 1))
        await asyncio.sleep(0.2)
        turn = await served.engine.sample(ask())
        assert not served.servers[0].paused.is_set()
        await update
        return turn, served.engine.policy_version

    turn, version = run(tmp_path, scenario)
    assert (turn.versions, version) == (((1, 6),), 1)


def test_a_turn_never_has_a_later_version_than_the_engine(tmp_path: Path) -> None:
    """Sessions refuse such a turn."""

    async def scenario(served: Served) -> tuple[Completion, int]:
        served.servers[1].faults = {"update_seconds": 2.0}
        update = asyncio.create_task(served.engine.load_weights(SECOND, 1))
        await asyncio.sleep(0.5)
        turn = await served.engine.sample(ask())  # on the first server
        assert not update.done()
        version = served.engine.policy_version
        await update
        return turn, version

    turn, version = run(tmp_path, scenario, 2)
    assert (turn.versions, version) == (((1, 6),), 1)


def test_a_turn_whose_attempt_failed_is_sampled_with_the_newest_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.engines.servers.engine._FIRST_PAUSE_SECONDS", 1.0)

    async def scenario(served: Served) -> Completion:
        served.servers[0].faults = {"errors": 1}
        turn = asyncio.create_task(served.engine.sample(ask()))
        await asyncio.sleep(0.4)
        await served.engine.load_weights(SECOND, 1)
        return await turn

    assert run(tmp_path, scenario).versions == ((1, 6),)


def test_a_server_that_was_started_again_gets_the_newest_weights(tmp_path: Path) -> None:
    async def scenario(served: Served) -> tuple[Completion, list[float], list[float]]:
        await served.engine.load_weights(SECOND, 1)
        expected = await served.engine.logprobs(IDS)
        served.servers[0].faults = {"forgets": True}
        again = await served.engine.sample(ask())
        served.servers[0].faults = {"forgets": True}
        return again, expected, await served.engine.logprobs(IDS)

    again, expected, scored = run(tmp_path, scenario)
    assert (again.versions, again.fingerprint) == (((1, 6),), SECOND.fingerprint)
    assert scored == pytest.approx(expected, abs=1e-5)


def test_tokens_of_other_weights_that_were_delivered_are_an_infrastructure_failure(tmp_path: Path) -> None:
    async def scenario(served: Served) -> Completion:
        await served.engine.sample(ask())
        served.servers[0].faults = {"forgets": True}
        with pytest.raises(InfrastructureError, match="'default', which this run did not load"):
            await served.engine.sample(ask(), [].append)
        return await served.engine.sample(ask(), [].append)

    assert run(tmp_path, scenario).fingerprint == FIRST.fingerprint


def test_an_answer_without_its_weights_is_an_infrastructure_failure(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        served.servers[0].faults = {"no_versions": True}
        with pytest.raises(InfrastructureError, match="did not report with which weights"):
            await served.engine.sample(ask())

    run(tmp_path, scenario)


def test_a_server_that_missed_an_update_gets_it_before_its_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.engines.servers.client.REST_SECONDS", 0.0)

    async def scenario(served: Served) -> tuple[list[Completion], list[str]]:
        await asyncio.gather(*(served.engine.sample(ask(session_id=name)) for name in "ab"))
        served.servers[0].faults = {"update_errors": 1}
        await served.engine.load_weights(SECOND, 1)
        assert served.servers[0].weights[0] != served.servers[1].weights[0]
        turns = [await served.engine.sample(ask(session_id=name)) for name in "ab"]
        return turns, [one.weights[0] for one in served.servers]

    turns, names = run(tmp_path, scenario, 2)
    assert {one.fingerprint for one in turns} == {SECOND.fingerprint}
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"update_errors": 99}, "no vLLM server loaded the weights: .*engine is dead"),
        ({"refuses_weights": True}, "/update_weights: status 500.*no such file.*PYTHONPATH="),
    ],
    ids=str,
)
def test_weights_that_no_server_loads_end_the_run(tmp_path: Path, faults: dict[str, Any], message: str) -> None:
    async def scenario(served: Served) -> None:
        served.servers[0].faults = dict(faults)
        with pytest.raises(ServiceError, match=message):
            await served.engine.load_weights(SECOND, 1)

    run(tmp_path, scenario)


def test_an_update_that_was_interrupted_is_completed_by_the_next(tmp_path: Path) -> None:
    async def scenario(served: Served) -> Completion:
        served.servers[0].faults = {"/start_weight_update": 500}  # as vLLM answers if an update has started
        await served.engine.load_weights(SECOND, 1)
        return await served.engine.sample(ask())

    assert run(tmp_path, scenario).fingerprint == SECOND.fingerprint


def test_servers_with_different_weights_are_named(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        served.servers[1].faults = {"wrong_weights": True}
        await served.engine.load_weights(SECOND, 1)
        with pytest.raises(ServiceError, match="other weights"):
            await served.engine.logprobs(IDS)

    run(tmp_path, scenario, 2)


def test_only_one_version_is_held(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        assert not served.engine.capabilities.holds_several_weights
        with pytest.raises(DataError, match="one version of all weights"):
            served.engine.freeze(FIRST)

    run(tmp_path, scenario)
    with pytest.raises(DataError, match="one version of all weights"):
        run(tmp_path, nothing, session_weights="pinned")


def test_a_server_that_cannot_replace_its_weights_is_refused_with_the_command_that_starts_it(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"cannot replace its weights.*--weight-transfer-config"):
        run(tmp_path, nothing, faults={"/init_weight_transfer_engine": 404})


def test_a_recipe_that_trains_all_weights_holds_one_version() -> None:
    can = recipe("model.trained_weights=full").engine_capabilities
    assert not can.holds_several_weights
    assert not can.pins_weights


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "rollout.session_weights=pinned",
            "cannot keep an episode on its first weights if model.trained_weights = 'full'",
        ),
        (
            "policies.opponent.role=frozen",
            "policies.opponent.role: is 'frozen', but .* holds one version of the weights",
        ),
    ],
)
def test_settings_that_need_several_versions_are_refused(override: str, message: str) -> None:
    recipe(override)
    with pytest.raises(ConfigError, match=message):
        recipe(override, "model.trained_weights=full")


def test_a_local_server_that_receives_all_weights_loads_the_plug_in() -> None:
    settings = ServerSettings(model="m", environment=Path("v"), max_model_len=64, lora_rank=None, max_running=2)
    arguments = build_arguments(settings, "cpu")
    transfer = arguments[arguments.index("--weight-transfer-config") + 1]
    assert json.loads(transfer) == {"backend": "sparring_files"}
    assert "--enable-lora" not in arguments
    assert (PLUGIN / "sparring_vllm.py").is_file()
    assert "sparring_vllm:register" in (PLUGIN / "sparring_vllm.dist-info" / "entry_points.txt").read_text("utf-8")
