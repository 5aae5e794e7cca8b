"""Which weights a turn is played with while newer ones are published."""

from __future__ import annotations

import asyncio

import pytest

from sparring.engines.torch_engine import TorchEngine
from sparring.types import Completion
from tests.engines.playing import FIRST, SECOND, Gate, assert_parity, play, request, some_ids, until


@pytest.mark.parametrize(("session_weights", "later"), [("latest", 7), ("pinned", 0)])
def test_an_update_mid_session_is_followed_or_not_as_chosen(session_weights: str, later: int) -> None:
    prompt = some_ids(70, 20)

    async def scenario(engine: TorchEngine) -> tuple[Completion, list[int], Completion, Completion]:
        first = await engine.sample(request("a", prompt, max_tokens=5))
        await engine.load_weights(SECOND, 7)
        assert (engine.policy_version, engine.fingerprint) == (7, SECOND.fingerprint)
        longer = [*prompt, *first.token_ids, 3, 4]
        second = await engine.sample(request("a", longer, max_tokens=5))
        return first, longer, second, await engine.sample(request("new", prompt, max_tokens=5))

    first, longer, second, other = play(scenario, session_weights=session_weights)
    assert (first.versions, second.versions, other.versions) == (((0, 5),), ((later, 5),), ((7, 5),))
    assert other.fingerprint == SECOND.fingerprint
    assert second.fingerprint == (FIRST if later == 0 else SECOND).fingerprint
    # The history is read again exactly when the weights are others: 27 + 4, or the last sampled, 2 new, and 4.
    assert second.num_computed_tokens == (31 if later == 7 else 7)
    assert_parity(prompt, first)
    assert_parity(longer, second)
    assert_parity(prompt, other)


def test_a_closed_session_is_no_longer_pinned() -> None:
    async def scenario(engine: TorchEngine) -> Completion:
        await engine.sample(request("a", [1, 2, 3]))
        await engine.load_weights(SECOND, 1)
        engine.close_session("a")
        return await engine.sample(request("a", [1, 2, 3], max_tokens=2))

    assert play(scenario, session_weights="pinned").versions == ((1, 2),)


def test_a_running_turn_keeps_its_weights_next_to_turns_of_newer_ones(gate: Gate) -> None:
    prompt = some_ids(71, 12)

    async def scenario(engine: TorchEngine) -> tuple[Completion, Completion]:
        old = asyncio.create_task(engine.sample(request("old", prompt, max_tokens=8)))
        gate.open(2)
        await until(lambda: len(gate.batches) == 3)
        await engine.load_weights(SECOND, 1)
        new = asyncio.create_task(engine.sample(request("new", prompt, max_tokens=4)))
        await asyncio.sleep(0)
        gate.open()
        return await old, await new

    old, new = play(scenario)
    assert (old.versions, new.versions) == (((0, 8),), ((1, 4),))
    assert new.num_computed_tokens == 12 + 3  # nothing of the old weights' cache is read
    assert_parity(prompt, old)
    assert_parity(prompt, new)


def test_a_turn_that_waits_for_a_slot_starts_with_the_newest_weights(gate: Gate) -> None:
    async def scenario(engine: TorchEngine) -> tuple[Completion, Completion]:
        first = asyncio.create_task(engine.sample(request("a", [1, 2], max_tokens=3)))
        await until(lambda: bool(engine._running))
        second = asyncio.create_task(engine.sample(request("b", [3, 4], max_tokens=2)))
        await asyncio.sleep(0)
        await engine.load_weights(SECOND, 1)
        gate.open()
        return await first, await second

    first, second = play(scenario, max_running=1)
    assert (first.versions, second.versions) == (((0, 3),), ((1, 2),))
