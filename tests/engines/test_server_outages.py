"""Servers that stop answering without closing their connections, and time that servers take from the policy."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from sparring.engines.servers import client, engine, watch
from sparring.errors import InfrastructureError, PolicyTimeout, ServiceError
from sparring.types import Completion
from tests.contracts.cases import SLOW, adapter_of, weights_of
from tests.engines.test_servers import SECOND, SGLANG_KIND, VLLM_KIND, Kind, Served, ask, run


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(watch, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(client, "CHECK_SECONDS", 0.3)


@pytest.fixture(params=[VLLM_KIND, SGLANG_KIND], ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


def freeze(server: Any) -> None:
    """Make a server accept connections and never answer, as a stopped process does."""

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    server.app.middleware_stack = wait


def test_a_turn_on_a_frozen_server_is_sampled_on_another_one(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> tuple[list[Completion], dict[str, float]]:
        turns = [asyncio.create_task(served.engine.sample(ask((SLOW, 1), name))) for name in "ab"]
        await asyncio.sleep(0.4)
        freeze(served.servers[0])
        return await asyncio.gather(*turns), served.engine.metrics()

    turns, metrics = run(tmp_path, scenario, 2, kind=kind)
    assert [len(turn.token_ids) for turn in turns] == [6, 6]
    assert metrics["engine/servers_up"] == 0.5


def test_a_stream_on_a_frozen_server_is_an_infrastructure_failure(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> None:
        turn = asyncio.create_task(served.engine.sample(ask((SLOW, 1), max_tokens=50), [].append))
        await asyncio.sleep(0.7)
        freeze(served.servers[0])
        served.servers[0].engine._forward.decode = lambda *_: time.sleep(3)
        with pytest.raises(InfrastructureError, match="broke off a turn"):
            await turn

    run(tmp_path, scenario, kind=kind)


def test_a_turn_that_takes_long_on_a_server_that_answers_goes_on(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> tuple[Completion, dict[str, float]]:
        return await served.engine.sample(ask((SLOW, 1))), served.engine.metrics()

    turn, metrics = run(tmp_path, scenario, kind=kind)
    assert len(turn.token_ids) == 6
    assert metrics["engine/retried_turns"] == 0


def test_a_frozen_server_does_not_stop_the_next_version(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> Completion:
        freeze(served.servers[0])
        await served.engine.load_weights(SECOND, 1)
        return await served.engine.sample(ask())

    assert run(tmp_path, scenario, 2, kind=kind).fingerprint == SECOND.fingerprint


def test_a_failure_that_passes_does_not_end_the_run_when_weights_are_loaded(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> Completion:
        served.servers[0].faults = {"load_errors": 2}
        await served.engine.load_weights(SECOND, 1)
        return await served.engine.sample(ask())

    assert run(tmp_path, scenario, kind=kind).fingerprint == SECOND.fingerprint


def test_closing_ends_a_load_that_waits_for_servers(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> None:
        served.engine._pool._patience_seconds = 600.0  # as for servers that the run starts
        served.servers[0].faults = {"load_errors": 10**6}
        load = asyncio.create_task(served.engine.load_weights(SECOND, 1))
        await asyncio.sleep(0.2)
        await served.engine.close()
        with pytest.raises(ServiceError, match=r"no .* server loaded the weights"):
            await asyncio.wait_for(load, 20)

    run(tmp_path, scenario, kind=kind)


def test_weights_that_are_written_while_the_engine_closes_leave_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = engine.write_adapter

    def write_slowly(*arguments: Any) -> None:
        time.sleep(0.3)
        write(*arguments)

    async def scenario(served: Served) -> list[Path]:
        await served.engine.sample(ask())
        monkeypatch.setattr(engine, "write_adapter", write_slowly)
        load = asyncio.create_task(served.engine.load_weights(SECOND, 1))
        await asyncio.sleep(0.1)
        load.cancel()
        await asyncio.wait([load])
        await served.engine.close()
        await asyncio.sleep(0.5)
        return list(served.folder.iterdir())

    assert run(tmp_path, scenario) == []


def test_a_session_that_was_closed_is_not_kept(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_FIRST_PAUSE_SECONDS", 0.3)

    async def scenario(served: Served) -> int:
        served.servers[0].faults = {"errors": 1}
        turn = asyncio.create_task(served.engine.sample(ask()))
        await asyncio.sleep(0.15)
        served.engine.close_session("s")
        await turn
        return len(served.engine._pool._sessions)

    assert run(tmp_path, scenario, kind=kind) == 0


def test_an_update_of_all_weights_takes_no_time_from_the_policy(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        await served.engine.sample(ask())
        served.servers[0].faults = {"update_seconds": 1.5}
        deadline = time.monotonic() + 2.5
        turn = asyncio.create_task(served.engine.sample(ask((SLOW, 1), max_tokens=20, deadline=deadline)))
        await asyncio.sleep(0.3)
        update = asyncio.create_task(served.engine.load_weights(weights_of(2), 1))
        with pytest.raises(InfrastructureError):
            await turn
        await update

    run(tmp_path, scenario, has_adapters=False)


def test_time_that_an_earlier_turn_lost_is_not_the_policy_s(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(served: Served) -> None:
        for num_errors, failure in ((0, PolicyTimeout), (1, InfrastructureError)):
            session_id, deadline = f"s{num_errors}", time.monotonic() + 2.0
            monkeypatch.setattr(engine, "_FIRST_PAUSE_SECONDS", 1.5)
            served.servers[0].faults = {"errors": num_errors}
            await served.engine.sample(ask(session_id=session_id, max_tokens=1, deadline=deadline))
            with pytest.raises(failure):
                await served.engine.sample(ask((SLOW, 1), session_id, max_tokens=50, deadline=deadline))

    run(tmp_path, scenario, kind=kind)


def test_many_turns_leave_nothing(tmp_path: Path) -> None:
    async def scenario(served: Served) -> tuple[int, list[int], int]:
        for version in range(1, 6):
            names = [f"{version}-{number}" for number in range(20)]
            await asyncio.gather(*(served.engine.sample(ask(session_id=name, max_tokens=1)) for name in names))
            for name in names:
                served.engine.close_session(name)
            await served.engine.load_weights(adapter_of(version % 2), version)
        adapters = [len(server.adapters) for server in served.servers]
        return len(served.engine._pool._sessions), adapters, len(list(served.folder.iterdir()))

    assert run(tmp_path, scenario, 2) == (0, [1, 1], 1)


def test_an_adapter_that_a_server_cannot_load_ends_the_run_at_once(tmp_path: Path, kind: Kind) -> None:
    async def scenario(served: Served) -> dict[str, float]:
        served.servers[0].faults = {"refuses_adapter": True}
        with pytest.raises(ServiceError, match=r"cannot load the adapter.*rank.*--max-lora-rank"):
            await served.engine.sample(ask())
        return served.engine.metrics()

    assert run(tmp_path, scenario, kind=kind)["engine/retried_turns"] == 0


def test_a_proxy_is_not_used_for_a_server_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    async def scenario(served: Served) -> Completion:
        return await served.engine.sample(ask())

    assert len(run(tmp_path, scenario).token_ids) == 6


def test_requests_that_wait_for_a_server_share_its_checks() -> None:
    checks, watched = 0, asyncio.Event()

    async def is_healthy() -> bool:
        nonlocal checks
        checks += 1
        await asyncio.sleep(0.2)
        watched.set()
        return True

    async def wait(one: watch.Watch) -> None:
        async with one.request():
            await watched.wait()

    async def scenario() -> None:
        one = watch.Watch(is_healthy)
        await asyncio.gather(*(wait(one) for _ in range(100)))

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert checks == 1


def test_every_request_notices_that_a_server_stopped() -> None:
    async def is_healthy() -> bool:
        return False

    async def wait(one: watch.Watch) -> None:
        async with one.request():
            await asyncio.sleep(30)

    async def scenario() -> list[BaseException | None]:
        one = watch.Watch(is_healthy)
        return await asyncio.gather(*(wait(one) for _ in range(20)), return_exceptions=True)

    ends = asyncio.run(asyncio.wait_for(scenario(), 10))
    assert all(isinstance(end, TimeoutError) for end in ends)
