"""What an engine does if it states that it has a capability."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from sparring.engines.remote import RemoteEngine
from sparring.engines.torch_engine import TorchEngine
from sparring.protocols import Engine
from sparring.types import Completion, Constraint, EngineCapabilities
from tests.contracts.cases import LETTERS, SLOW, STOP, VOCAB, EngineCase
from tests.contracts.scenarios import PROMPT, Scenario, asked, require, started


def test_an_engine_of_our_own_has_every_capability(run_strict: Callable[[Scenario], Any]) -> None:
    """Otherwise, a capability that got lost would only show as a skipped test."""

    async def scenario(case: EngineCase) -> None:
        if isinstance(case.engine, TorchEngine | RemoteEngine):
            every = EngineCapabilities(**{field.name: True for field in dataclasses.fields(EngineCapabilities)})
            assert case.engine.capabilities == every

    run_strict(scenario)


def test_an_engine_without_settings_for_it_states_neither_rounds_nor_pins(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> None:
        assert not case.engine.capabilities.pins_weights
        assert not case.engine.capabilities.deterministic_rounds

    run(scenario)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_removed_mass_is_the_probability_of_the_forbidden_tokens(
    run: Callable[[Scenario], Any], temperature: float
) -> None:
    async def scenario(case: EngineCase) -> None:
        engine = case.engine
        require(engine, "reports_removed_mass", "scores_given_ids")
        # The second of the two tokens forbids less than the first, so the largest removed mass is not the last one.
        constraint = Constraint(grammar="start: /[ab][c-zA-Z]c/")
        completion = await engine.sample(
            asked(constraint=constraint, stop_ids=frozenset({STOP}), temperature=temperature, max_tokens=2)
        )
        removed, logprobs = [], []
        history = list(PROMPT)
        choices = (LETTERS.encode("ab"), range(LETTERS.encode("c")[0], VOCAB))
        for token, allowed in zip(completion.token_ids, choices, strict=True):
            scores = [(await engine.logprobs([*history, one], temperature))[-1] for one in range(VOCAB)]
            removed.append(sum(math.exp(score) for one, score in enumerate(scores) if one not in allowed))
            # What is left is normalized again.
            logprobs.append(scores[token] - math.log(sum(math.exp(scores[one]) for one in allowed)))
            history.append(token)
        assert 0.01 < removed[1] < removed[0] < 1
        assert completion.removed_mass == pytest.approx(removed[0], abs=1e-4)
        assert completion.sampled_logprobs == pytest.approx(logprobs, abs=1e-4)

    run(scenario)


def test_without_a_constraint_no_mass_is_removed(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> list[float]:
        require(case.engine, "reports_removed_mass")
        stop_ids = frozenset({STOP})
        await case.engine.sample(asked(constraint=Constraint(grammar='start: "a"'), stop_ids=stop_ids))
        return [(await case.engine.sample(asked(temperature=one))).removed_mass for one in (0.0, 0.7, 1.0)]

    assert run(scenario) == [0.0, 0.0, 0.0]


def test_a_pinned_session_keeps_the_weights_of_its_first_turn(run_strict: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> None:
        engine, version = case.engine, case.engine.policy_version
        require(engine, "pins_weights", "scores_given_ids")
        engine.open_session("s")
        turn = await started(engine, asked((SLOW, 1, 2), max_tokens=8))
        await engine.load_weights(case.second, version + 1)
        first, second = await turn, await engine.sample(asked())
        engine.close_session("s")
        engine.open_session("s")
        reopened = await engine.sample(asked())
        engine.close_session("s")

        assert (engine.policy_version, engine.fingerprint) == (version + 1, case.second.fingerprint)
        for completion, number, weights in (
            (first, version, case.first),
            (second, version, case.first),
            (reopened, version + 1, case.second),
        ):
            assert completion.versions == ((number, len(completion.token_ids)),)
            assert completion.fingerprint == weights.fingerprint
        # The reports are true: these are the log-probabilities under the weights that they name.
        assert await score(engine, reopened) == pytest.approx(reopened.sampled_logprobs, abs=1e-4)
        await engine.load_weights(case.first, version + 2)
        assert await score(engine, second) == pytest.approx(second.sampled_logprobs, abs=1e-4)
        assert await score(engine, reopened) != pytest.approx(reopened.sampled_logprobs, abs=1e-2)

    run_strict(scenario)


async def score(engine: Engine, completion: Completion) -> list[float]:
    """Return the log-probabilities of an answer to `PROMPT` under the newest weights."""
    return (await engine.logprobs([*PROMPT, *completion.token_ids]))[len(PROMPT) - 1 :]


def test_rounds_do_not_depend_on_the_order_and_timing_of_requests(run_strict: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> list[Any]:
        require(case.engine, "deterministic_rounds")
        version = case.engine.policy_version + 1
        found = []
        for arrivals, loads_after in (((0, 1, 2), 0.0), ((2, 1, 0), 0.09), ((1, 0, 2), 0.09)):
            await case.engine.load_weights(case.first, version)
            found.append(await play_rounds(case, arrivals, loads_after, version + 1))
        return found

    one, *others = run_strict(scenario)
    assert [[len(turn[0]) for turn in turns] for turns in one] == [[4] * 3, [7] * 3, [10] * 3]
    assert others == [one, one]


async def play_rounds(case: EngineCase, arrivals: tuple[int, ...], loads_after: float, version: int) -> list[Any]:
    """Run three sessions of three turns at once, and load the second weights before the last session's first request.
    Return the tokens, log-probabilities, versions and fingerprint of each turn.

    Session i waits `0.06 * arrivals[i]` seconds before each request.
    """
    engine, is_loaded = case.engine, asyncio.Event()

    async def play(number: int) -> list[Any]:
        history, turns = (*PROMPT, *range(20, 30), *range(30, 31 + number)), []
        for place in range(3):
            await asyncio.sleep(0.06 * arrivals[number])
            if arrivals[number] == 2:
                await is_loaded.wait()
            request = asked(
                history, session_id=f"r{number}", seed=number, order=(number, place), max_tokens=4 + 3 * number
            )
            completion = await engine.sample(request)
            values = (completion.token_ids, completion.sampled_logprobs, completion.versions, completion.fingerprint)
            turns.append(values)
            history += completion.token_ids
        engine.close_session(f"r{number}")
        return turns

    async def load() -> None:
        await asyncio.sleep(loads_after)
        await engine.load_weights(case.second, version)
        is_loaded.set()

    for number in sorted(range(3), key=arrivals.__getitem__):
        engine.open_session(f"r{number}")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load())
        played = [tasks.create_task(play(number)) for number in range(3)]
    return [one.result() for one in played]
