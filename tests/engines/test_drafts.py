"""A draft saves passes through the model and decides no token."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.engines.cached_forward import LeanForward
from sparring.engines.drafts import NUM_EQUAL, Drafts
from sparring.engines.logits_cache import LogitsCache
from sparring.engines.torch_engine import TorchEngine
from sparring.models.policy import Policy
from sparring.types import Completion, SampleRequest
from tests.engines.playing import (
    FIRST,
    POLICY,
    SECOND,
    Gate,
    assert_parity,
    make_policy,
    play,
    request,
    some_ids,
    until,
)

SURE = 0.02
"""A temperature at which turns nearly always draw the same token."""


def test_a_draft_continues_the_latest_place_with_the_same_tokens_before_it() -> None:
    known = Drafts()
    ids = list(range(NUM_EQUAL))
    for token, other in ((50, 51), (60, 61)):
        sampled: list[int] = []
        logprobs: list[float] = []
        for one in (token, other):
            sampled.append(one)
            logprobs.append(-0.01)
            known.remember([*ids, *sampled], sampled, logprobs)
    assert known.propose([7, 7, *ids], 5) == [60, 61]  # 61 was sampled after the place was remembered
    assert known.propose([*ids[1:], 50], 5) == [51]
    assert known.propose(ids[1:], 5) == []
    assert known.propose(ids, 0) == []
    known.forget()
    assert known.propose(ids, 5) == []


def test_a_draft_ends_before_an_unlikely_token() -> None:
    known = Drafts()
    sampled: list[int] = []
    logprobs: list[float] = []
    for token, logprob in ((40, -0.01), (41, 0.0), (42, -3.0), (43, 0.0)):
        sampled.append(token)
        logprobs.append(logprob)
        known.remember([*range(NUM_EQUAL), *sampled], sampled, logprobs)
    assert known.propose(list(range(NUM_EQUAL)), 9) == [40, 41]
    assert known.propose(list(range(NUM_EQUAL)), 1) == [40]
    assert known.propose([*range(NUM_EQUAL), 40, 41], 9) == []


def test_the_places_are_forgotten_when_there_are_too_many() -> None:
    known = Drafts(max_places=2)
    for seed in range(3):
        known.remember([*some_ids(seed, NUM_EQUAL), seed], [seed], [0.0])
    assert [known.propose(some_ids(seed, NUM_EQUAL), 1) for seed in range(3)] == [[], [], [2]]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 5)), min_size=1, max_size=20), is_shared=st.booleans()
)
def test_logits_after_several_tokens_are_those_of_one_token_after_the_other(
    rows: list[tuple[int, int]], is_shared: bool
) -> None:
    """Rows of different lengths and capacities, with or without a common prompt that is attended to jointly."""
    weights = POLICY.materialize(FIRST)
    beginning = some_ids(99, 70) if is_shared else []
    histories = [[*beginning, *some_ids(number, length)] for number, (length, _) in enumerate(rows)]
    new = [some_ids(100 + number, count) for number, (_, count) in enumerate(rows)]
    found = []
    for is_together in (True, False):
        forward = LeanForward(POLICY, weights.shape, kv_cache_tokens=8192)
        loaded = forward.materialize(FIRST)
        taken = []
        for number, ids in enumerate(histories):
            row = forward.cache.claim(str(number), [*ids, 0], "", room=8)
            assert row is not None
            if ids[len(row.token_ids) :]:
                forward.prefill(loaded, [(row, ids[len(row.token_ids) :])])
            taken.append((row, new[number]))
        taken.sort(key=lambda pair: (pair[0].capacity, pair[0].offset))
        if is_together:
            logits = forward.decode(loaded, [row for row, _ in taken], [tokens for _, tokens in taken])
        else:
            logits = torch.cat([forward.decode(loaded, [row], [[token]]) for row, tokens in taken for token in tokens])
        assert all(row.token_ids[-len(tokens) :] == tokens for row, tokens in taken)
        found.append(logits)
    assert torch.allclose(*found, atol=1e-4)


def list_requests(*, max_tokens: int = 40, **changes: float) -> list[SampleRequest]:
    return [
        request(f"s{place}", some_ids(place % 2, 20), seed=place, max_tokens=max_tokens, temperature=SURE, **changes)
        for place in range(6)
    ]


def play_in_turn(
    requests: Sequence[SampleRequest], *, is_new: bool = False, has_drafts: bool = True
) -> list[Completion]:
    async def scenario(engine: TorchEngine) -> list[Completion]:
        if not has_drafts:
            engine._forward.max_decoded_tokens = 0
        completions = []
        for number, one in enumerate(requests):
            if is_new:
                # Other weights and then the first again, so that no logits are known, but the drafts are.
                await engine.load_weights(SECOND, number)
                await engine.sample(request("other", [1, 2], max_tokens=1))
                await engine.load_weights(FIRST, number)
            completions.append(await engine.sample(one))
        return completions

    return play(scenario)


def test_tokens_are_those_without_drafts(gate: Gate) -> None:
    gate.open()
    requests = list_requests()
    found = play_in_turn(requests, is_new=True)
    num_passes = len(gate.batches)
    plain = play_in_turn(requests, is_new=True, has_drafts=False)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    for one, completion, other in zip(requests, found, plain, strict=True):
        assert completion.sampled_logprobs == pytest.approx(other.sampled_logprobs, abs=1e-4)
        assert_parity(one.prompt_ids, completion, SURE)
    assert num_passes < 0.6 * (len(gate.batches) - num_passes)


def test_a_draft_goes_no_further_than_the_limit_of_a_turn() -> None:
    requests = [*list_requests(), *list_requests(max_tokens=3)]
    assert [len(one.token_ids) for one in play_in_turn(requests, is_new=True)] == [40] * 6 + [3] * 6


def test_a_run_in_rounds_depends_on_no_draft_of_an_earlier_one() -> None:
    """After a moment without open sessions, a deterministic engine computes what a new one would."""
    requests = list_requests()

    async def round_of(engine: TorchEngine) -> list[Completion]:
        for one in requests:
            engine.open_session(one.session_id)
        completions = await asyncio.gather(*(engine.sample(one) for one in requests))
        for one in requests:
            engine.close_session(one.session_id)
        return list(completions)

    async def scenario(engine: TorchEngine) -> list[list[Completion]]:
        return [await round_of(engine) for _ in range(2)]

    first, second = play(scenario, deterministic=True)
    assert first == second


def test_a_draft_ends_where_the_context_ends() -> None:
    """The rows of the cache are rounded up: here to 132 tokens, one more than the model has positions."""
    policy = Policy(make_policy().base, None, max_positions=131)
    # 21 tokens and six passes of 16: the seventh pass has room for 15 drafted tokens in its row, but not in the context.
    one = request("a", some_ids(1, 21), max_tokens=500, temperature=SURE)

    async def scenario() -> list[Completion]:
        engine = TorchEngine(policy, policy.snapshot())
        try:
            completions = [await engine.sample(one)]
            # Drafts that go on after the end of the context.
            engine._drafts.forget()
            sampled: list[int] = []
            logprobs: list[float] = []
            for token in (*completions[0].token_ids, *some_ids(2, 20)):
                sampled.append(token)
                logprobs.append(0.0)
                engine._drafts.remember([*one.prompt_ids, *sampled], sampled, logprobs)
            await engine.load_weights(SECOND, 1)
            await engine.sample(request("other", [1, 2], max_tokens=1))
            await engine.load_weights(FIRST, 2)
            completions.append(await engine.sample(one))
            return completions
        finally:
            await engine.close()

    completions = asyncio.run(scenario())
    assert [len(completion.token_ids) for completion in completions] == [110] * 2
    assert completions[0].token_ids == completions[1].token_ids


@pytest.mark.parametrize("seed", range(4))
def test_rows_on_one_path_stay_within_their_own_tokens(seed: int) -> None:
    """Without known logits, turns with equal histories have rows of their own until they meet, and other drafts."""
    numbers = random.Random(seed)
    requests = [
        request(f"s{place}", some_ids(0, 30), seed=place % 3, max_tokens=numbers.choice([20, 60, 120]), temperature=0.1)
        for place in range(8)
    ]

    async def scenario(engine: TorchEngine) -> list[Completion]:
        engine._known = LogitsCache(max_bytes=0)
        # A wrong continuation for many places.
        wrong = some_ids(5, 12)
        for place in range(200):
            before = some_ids(place, NUM_EQUAL)
            engine._drafts.remember([*before, wrong[0]], wrong, [0.0] * 12)
        tasks = []
        for one in requests:
            tasks.append(asyncio.create_task(engine.sample(one)))
            await asyncio.sleep(numbers.uniform(0.0, 0.03))
        return list(await asyncio.gather(*tasks))

    together = play(scenario)
    for one, completion in zip(requests, together, strict=True):
        alone = play(lambda engine, one=one: engine.sample(one))
        assert completion.token_ids == alone.token_ids
        assert_parity(one.prompt_ids, completion, 0.1)


class WrongDrafts:
    """Proposes tokens that no turn draws, after one prompt only."""

    def __init__(self, prompt: Sequence[int], draft: list[int]) -> None:
        self._prompt, self._draft = list(prompt), draft

    def remember(self, *_: object) -> None:
        pass

    def forget(self) -> None:
        pass

    def propose(self, ids: Sequence[int], limit: int) -> list[int]:
        return self._draft[:limit] if list(ids) == self._prompt else []


def test_a_turn_does_not_follow_the_row_of_another_turn_that_is_ahead(gate: Gate) -> None:
    """The first turn is one token ahead, so its row has the logits of the second one's next history in the same pass."""
    prompt = some_ids(9, 20)
    first, second = (request(name, prompt, seed=1, max_tokens=6) for name in "ab")
    gate.open()
    alone = play_in_turn([first])[0]
    wrong = [token for token in range(60) if token not in alone.token_ids][:3]
    gate.permits = threading.Semaphore(0)
    begun = len(gate.batches)

    async def scenario(engine: TorchEngine) -> list[Completion]:
        engine._known, engine._drafts = LogitsCache(max_bytes=0), WrongDrafts(prompt, wrong)
        ahead = asyncio.create_task(engine.sample(first))
        await until(lambda: len(gate.batches) == begun + 1)
        behind = asyncio.create_task(engine.sample(second))
        await until(lambda: len(engine._waiting) == 1)
        gate.open()
        return list(await asyncio.gather(ahead, behind))

    assert [one.token_ids for one in play(scenario)] == [alone.token_ids] * 2
    assert gate.batches[begun : begun + 3] == [1, 2, 2]
