"""Deterministic rounds: the same tokens bit for bit, whatever arrives when."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from sparring.engines.torch_engine import TorchEngine
from sparring.errors import PolicyTimeout
from tests.engines.playing import Gate, assert_parity, play, request, some_ids, until

Shown = list[tuple[tuple[int, ...], tuple[float, ...], int]]
"""What a session was answered: ids, log-probabilities, tokens computed."""


async def episode_of(engine: TorchEngine, i: int, shown: dict[int, Shown], delays: random.Random) -> None:
    """One to three turns of session i, asked for at moments that `delays` chooses."""
    history = [*some_ids(80 + i // 4, 40), *some_ids(i // 2, 5)]
    shown[i] = []
    for turn in range(1 + i % 3):
        for _ in range(delays.randrange(40)):
            await asyncio.sleep(0)
        completion = await engine.sample(request(f"s{i}", history, seed=i, order=(i, turn), max_tokens=15))
        shown[i].append((completion.token_ids, completion.sampled_logprobs, completion.num_computed_tokens))
        history = [*history, *completion.token_ids, *some_ids(turn, 6)]
    engine.close_session(f"s{i}")


def wave(delays: random.Random, *, before: int = 0, strangers: int = 0) -> dict[int, Shown]:
    """Eight sessions of a deterministic engine under memory pressure, after `before` other sessions, with turns of
    sessions that were never opened in between."""

    async def scenario(engine: TorchEngine) -> dict[int, Shown]:
        for i in range(before):
            engine.open_session(f"before{i}")
            await engine.sample(request(f"before{i}", some_ids(80, 40 + i), order=(i,)))
            engine.close_session(f"before{i}")
        sessions = list(range(8))
        for i in sessions:
            engine.open_session(f"s{i}")
        delays.shuffle(sessions)
        shown: dict[int, Shown] = {}

        async def stranger(i: int) -> None:
            for _ in range(delays.randrange(60)):
                await asyncio.sleep(0)
            completion = await engine.sample(request(f"x{i}", some_ids(80, 30), seed=i))
            assert_parity(some_ids(80, 30), completion)

        await asyncio.gather(
            *[episode_of(engine, i, shown, delays) for i in sessions], *[stranger(i) for i in range(strangers)]
        )
        return shown

    return play(scenario, deterministic=True, kv_cache_tokens=1024, max_running=5, prefill_chunk_tokens=48)


def test_rounds_are_equal_bit_for_bit_whatever_the_arrival() -> None:
    first = wave(random.Random(0))
    assert {i: len(turns) for i, turns in first.items()} == {i: 1 + i % 3 for i in range(8)}
    assert wave(random.Random(1)) == first
    assert wave(random.Random(2)) == first


def test_the_memory_of_the_cache_is_returned_when_the_last_session_ends() -> None:
    async def scenario(engine: TorchEngine) -> list[bool]:
        cache, seen = engine._cache, list[bool]()
        for number in range(2):
            engine.open_session(f"s{number}")
            await engine.sample(request(f"s{number}", some_ids(80, 40)))
            seen.append(bool(cache.keys_K_S_D[0].any()))
            engine.close_session(f"s{number}")
            await until(lambda: not cache.keys_K_S_D[0].any())
        return seen

    assert play(scenario, deterministic=True) == [True, True]


def test_what_was_played_before_the_open_sessions_leaves_no_trace() -> None:
    assert wave(random.Random(3), before=3) == wave(random.Random(4))


def test_turns_of_sessions_that_were_never_opened_change_no_round() -> None:
    assert wave(random.Random(5), strangers=4) == wave(random.Random(6))


def test_no_round_begins_before_every_open_session_asks(gate: Gate) -> None:
    gate.open()

    async def scenario(engine: TorchEngine) -> None:
        engine.open_session("a")
        engine.open_session("b")
        with pytest.raises(PolicyTimeout, match="waited for a round"):
            await engine.sample(request("a", [1, 2], deadline=time.monotonic() + 0.05))
        assert gate.batches == []
        turns = [asyncio.create_task(engine.sample(request("a", [1, 2], max_tokens=2)))]
        await asyncio.sleep(0)
        turns.append(asyncio.create_task(engine.sample(request("b", [3, 4], max_tokens=2))))
        await asyncio.gather(*turns)
        engine.close_session("b")
        await engine.sample(request("a", [5, 6], max_tokens=1))  # b is not waited for any more

    play(scenario, deterministic=True)
    assert gate.batches == [2, 2, 1]
