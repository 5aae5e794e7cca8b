"""Local servers: one that is killed is started again at its address, and no turn is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparring.engines.servers.engine import ServersEngine
from sparring.engines.servers.processes import ServerSettings, StartedServers
from sparring.errors import ServiceError
from sparring.models.policy import Policy
from sparring.types import Completion, Weights
from tests.vllm.conftest import ENVIRONMENT
from tests.vllm.processes import find_servers, kill
from tests.vllm.test_tokens import TOLERANCE, differences, request, sample


def test_turns_of_a_killed_server_are_sampled_again_and_it_comes_back(
    build_engine: Callable[..., ServersEngine],
    servers: StartedServers,
    policy: Policy,
    adapters: tuple[Weights, Weights],
) -> None:
    asked = [request(number) for number in range(8)]
    num_restarts = servers.num_restarts

    async def scenario(engine: ServersEngine) -> tuple[list[Completion], float]:
        running = [asyncio.create_task(engine.sample(one)) for one in asked]
        await asyncio.sleep(0.5)
        kill(find_servers(url=servers.urls[0])[0])
        turns = await asyncio.gather(*running)
        return turns, engine.metrics()["engine/retried_turns"]

    turns, num_retried = sample(build_engine, scenario)
    assert num_retried >= 4  # half of the sessions were on the killed server
    assert max(differences(policy, adapters[0], list(zip(asked, turns, strict=True)))) < TOLERANCE

    deadline = time.monotonic() + 300
    while not find_servers(url=servers.urls[0]) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert servers.num_restarts == num_restarts + 1
    for url in servers.urls:  # each of them answers again, with an adapter that it loads now

        async def ask(engine: ServersEngine) -> Completion:
            return await engine.sample(asked[0])

        again = sample(lambda url=url: _connect(build_engine, url, deadline), ask)
        assert again.token_ids == turns[0].token_ids


def _connect(build: Callable[..., ServersEngine], url: str, deadline: float) -> ServersEngine:
    while True:
        try:
            return build([url])
        except ServiceError:  # it is still loading the model
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def test_a_server_that_cannot_start_ends_the_start_with_its_error(tmp_path: Path) -> None:
    assert ENVIRONMENT is not None
    settings = ServerSettings(
        model=str(tmp_path),  # an empty folder
        environment=Path(ENVIRONMENT),
        max_model_len=64,
        lora_rank=8,
        num_adapters=1,
        max_running=1,
    )
    start_time = time.monotonic()
    with pytest.raises(ServiceError, match=r"ended with exit code 1 while it started.*\n.*Error"):
        StartedServers(settings, tmp_path / "logs", announce=print)
    assert time.monotonic() - start_time < 120
    assert find_servers(tmp_path) == []
