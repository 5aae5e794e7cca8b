"""A real vLLM server whose weights are replaced while it runs, because all weights are trained."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from sparring.engines.servers.engine import ServersEngine
from sparring.engines.servers.processes import ServerSettings, StartedServers
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ServiceError
from sparring.models.policy import Policy, fingerprint
from sparring.types import Completion, SampleRequest, Weights
from tests.contracts.cases import CONTEXT, LETTERS
from tests.vllm.conftest import ENVIRONMENT, build_model
from tests.vllm.processes import find_servers, kill
from tests.vllm.test_tokens import TOLERANCE, differences, request, sample


@pytest.fixture(scope="module")
def whole_policy() -> Policy:
    torch.set_num_threads(1)
    return Policy(build_model(), LETTERS, max_positions=CONTEXT)


@pytest.fixture(scope="module")
def versions(whole_policy: Policy) -> list[Weights]:
    """The model's weights, and weights that differ from them in every tensor."""
    first, random = whole_policy.snapshot(), torch.Generator().manual_seed(1)
    changed = {name: one + 0.02 * torch.randn(one.shape, generator=random) for name, one in first.tensors.items()}
    return [first, Weights(tensors=changed, fingerprint=fingerprint(changed))]


@pytest.fixture(scope="module")
def server(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedServers]:
    assert ENVIRONMENT is not None
    settings = ServerSettings(
        model=str(base),
        environment=Path(ENVIRONMENT),
        max_model_len=CONTEXT,
        lora_rank=None,
        max_running=16,
        extra_arguments=("--skip-tokenizer-init",),
    )
    started = StartedServers(settings, tmp_path_factory.mktemp("servers"), announce=print)
    yield started
    started.close()


@pytest.fixture
def connect(server: StartedServers, versions: list[Weights], tmp_path: Path) -> Any:
    def build() -> ServersEngine:
        return ServersEngine(
            server.urls, shape=None, folder=tmp_path / "run", weights=versions[0], api_key=server.api_key
        )

    return build


def test_log_probabilities_before_and_after_a_switch_are_those_of_our_model(
    connect: Any, whole_policy: Policy, versions: list[Weights]
) -> None:
    asked = [request(number, temperature=temperature) for number, temperature in enumerate((1.0, 0.7) * 4)]
    ids = [(11 * place) % 60 for place in range(30)]

    async def scenario(engine: ServersEngine) -> list[tuple[list[Completion], list[float]]]:
        found = []
        for number, weights in enumerate((versions[0], versions[1], versions[0])):
            await engine.load_weights(weights, number)
            turns = await asyncio.gather(*map(engine.sample, asked))
            found.append((turns, await engine.logprobs(ids)))
        return found

    async def score(weights: Weights) -> list[float]:
        engine = TorchEngine(whole_policy, weights)
        scores = await engine.logprobs(ids)
        await engine.close()
        return scores

    for number, (turns, scores) in enumerate(sample(connect, scenario)):
        weights = versions[number % 2]
        assert {turn.versions for turn in turns} == {((number, 100),)}
        assert {turn.fingerprint for turn in turns} == {weights.fingerprint}
        assert max(differences(whole_policy, weights, list(zip(asked, turns, strict=True)))) < TOLERANCE
        assert scores == pytest.approx(asyncio.run(score(weights)), abs=TOLERANCE)
        # The versions are so different that one cannot be taken for the other.
        other = versions[1 - number % 2]
        assert max(differences(whole_policy, other, list(zip(asked, turns, strict=True)))) > 100 * TOLERANCE


def test_a_turn_that_runs_across_a_switch_reports_which_version_sampled_each_token(
    connect: Any, whole_policy: Policy, versions: list[Weights]
) -> None:
    asked = [request(number) for number in range(8)]

    async def scenario(engine: ServersEngine) -> list[tuple[SampleRequest, Completion]]:
        switched, running = asyncio.Event(), asyncio.Event()
        running_ids = set[int]()
        played: list[tuple[SampleRequest, Completion]] = []

        def note(number: int) -> None:
            running_ids.add(number)
            if len(running_ids) == len(asked):
                running.set()

        async def repeat(number: int) -> None:
            # One turn after another until the switch, so that turns run at the moment of the switch on a slow machine too.
            while not switched.is_set():
                played.append((asked[number], await engine.sample(asked[number], lambda _: note(number))))

        players = [asyncio.create_task(repeat(number)) for number in range(len(asked))]
        await asyncio.wait_for(running.wait(), timeout=60)
        await engine.load_weights(versions[1], 1)
        switched.set()
        await asyncio.gather(*players)
        return played

    turns = sample(connect, scenario)
    for one, turn in turns:
        assert [number for number, _ in turn.versions] in ([0], [0, 1], [1])
        num_before = dict(turn.versions).get(0, 0)
        assert sum(number for _, number in turn.versions) == 100
        assert turn.fingerprint == versions[turn.versions[-1][0]].fingerprint
        before = differences(whole_policy, versions[0], [(one, turn)])[:num_before]
        after = differences(whole_policy, versions[1], [(one, turn)])[num_before:]
        assert max(before + after) < TOLERANCE
    assert any(len(turn.versions) == 2 for _, turn in turns)


def test_a_server_that_was_started_again_gets_the_newest_weights_before_its_next_turn(
    connect: Any, server: StartedServers, versions: list[Weights]
) -> None:
    num_restarts = server.num_restarts

    async def scenario(engine: ServersEngine) -> tuple[Completion, Completion]:
        await engine.load_weights(versions[1], 1)
        expected = await engine.sample(request(1))
        kill(find_servers(url=server.urls[0])[0])
        while server.num_restarts == num_restarts:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        deadline = time.monotonic() + 300
        async with httpx.AsyncClient(base_url=server.urls[0]) as client:
            while time.monotonic() < deadline:
                await asyncio.sleep(0.5)
                with suppress(httpx.HTTPError):
                    if (await client.get("/health")).status_code == 200:
                        break
        # The engine has sent nothing since the server ended, so only the answer shows that the server has other weights.
        return expected, await engine.sample(request(1))

    expected, again = sample(connect, scenario)
    assert again.versions == ((1, 100),)
    assert again.token_ids == expected.token_ids


def test_an_update_that_failed_or_was_interrupted_does_not_prevent_the_next(
    connect: Any, server: StartedServers, whole_policy: Policy, versions: list[Weights]
) -> None:
    strange = Weights(tensors={"model.strange.weight": torch.zeros(2, 2)}, fingerprint="strange")

    async def scenario(engine: ServersEngine) -> Completion:
        with pytest.raises(ServiceError, match=r"/update_weights: status 500.*strange"):
            await engine.load_weights(strange, 1)
        async with httpx.AsyncClient(base_url=server.urls[0]) as client:
            assert (await client.post("/start_weight_update")).status_code == 200
        await engine.load_weights(versions[1], 2)
        return await engine.sample(request(1))

    turn = sample(connect, scenario)
    assert turn.versions == ((2, 100),)
    assert max(differences(whole_policy, versions[1], [(request(1), turn)])) < TOLERANCE
