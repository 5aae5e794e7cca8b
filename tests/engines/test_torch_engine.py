"""What the engine samples is what the policy would say: through sharing, joins, evictions and updates of weights."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.engines import cached_forward
from sparring.engines.cached_forward import LeanForward
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ContextOverflow, InfrastructureError, PolicyTimeout
from sparring.models.forest import forest_logprobs, layout
from sparring.models.policy import Policy
from sparring.types import Completion, SampleRequest, Sampling, StopReason, TokenSegment, Weights

VOCAB = 60
CONTEXT = 256


def make_policy(seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    return Policy(LlamaForCausalLM(config), None, max_positions=CONTEXT)


POLICY = make_policy()
FIRST = POLICY.snapshot()
SECOND = make_policy(1).snapshot()
WEIGHTS = {FIRST.fingerprint: FIRST, SECOND.fingerprint: SECOND}


def request(session_id: str, prompt: Sequence[int], **changes: Any) -> SampleRequest:
    sampling = Sampling(
        temperature=changes.pop("temperature", 1.0),
        top_p=changes.pop("top_p", 1.0),
        max_tokens=changes.pop("max_tokens", 8),
    )
    return SampleRequest(
        session_id=session_id, prompt_ids=tuple(prompt), sampling=sampling,
        stop_ids=changes.pop("stop_ids", frozenset()), seed=changes.pop("seed", 0), **changes,
    )  # fmt: skip


def some_ids(seed: int, count: int) -> list[int]:
    return [random.Random(seed).randrange(VOCAB) for _ in range(count)] if count else []


def play(scenario: Callable[[TorchEngine], Awaitable[Any]], **options: Any) -> Any:
    """Run a scenario against a fresh engine and close it, whatever happens."""

    async def run() -> Any:
        engine = TorchEngine(POLICY, FIRST, **options)
        try:
            return await asyncio.wait_for(scenario(engine), 60)
        finally:
            await engine.close()

    return asyncio.run(run())


def recomputed(prompt: Sequence[int], completion: Completion, temperature: float = 1.0) -> list[float]:
    """Log-probabilities of the sampled ids as training computes them: prompt and answer as two segments."""
    count = len(completion.token_ids)
    zeros = lambda number: (0.0,) * number  # noqa: E731
    segments = [
        TokenSegment(
            parent=parent, token_ids=tuple(ids), mask=(is_sampled,) * len(ids), sampled_logprobs=zeros(len(ids)),
            advantages=zeros(len(ids)), weights=zeros(len(ids)), temperature=temperature or 1.0,
        )
        for parent, ids, is_sampled in ((None, prompt, False), (0, completion.token_ids, True))
    ]  # fmt: skip
    weights = POLICY.materialize(WEIGHTS[completion.fingerprint])
    with torch.no_grad():
        logprobs = forest_logprobs(weights, layout(segments))[0].tolist()
    assert len(logprobs) == count
    return logprobs


def assert_parity(prompt: Sequence[int], completion: Completion, temperature: float = 1.0) -> None:
    """The contract: sampled and recomputed log-probabilities differ by at most 1e-4 in fp32."""
    assert completion.sampled_logprobs == pytest.approx(recomputed(prompt, completion, temperature), abs=1e-4)


@dataclass
class Gate:
    """Lets the engine take decoding steps one by one, so that a test can act between them."""

    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[int] = field(default_factory=list)
    """How many turns each step that began decodes; the last may still wait at the gate."""

    def open(self, num_steps: int = 1_000_000) -> None:
        self.permits.release(num_steps)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, original = Gate(), LeanForward.decode

    def decode(forward: LeanForward, weights: Any, rows: Any, token_ids: Any) -> torch.Tensor:
        gate.batches.append(len(rows))
        assert gate.permits.acquire(timeout=30)
        return original(forward, weights, rows, token_ids)

    monkeypatch.setattr(LeanForward, "decode", decode)
    yield gate
    gate.open()


async def until(condition: Callable[[], bool]) -> None:
    """Give the engine's thread the processor until it has got somewhere; fails after ten seconds."""
    patience = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < patience, "the engine did not get there"
        await asyncio.sleep(0)


# What a single turn is.


def test_greedy_tokens_are_those_of_transformers_generate() -> None:
    prompt = some_ids(1, 7)
    completion = play(lambda engine: engine.sample(request("a", prompt, temperature=0.0, max_tokens=30)))
    expected = POLICY.base.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 7, dtype=torch.long), do_sample=False, max_new_tokens=30,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert list(completion.token_ids) == expected[0, 7:].tolist()
    assert completion.stop_reason is StopReason.LENGTH
    assert_parity(prompt, completion, 0.0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_log_probabilities_are_of_the_distribution_after_the_temperature(temperature: float) -> None:
    prompt = some_ids(2, 9)

    async def scenario(engine: TorchEngine) -> tuple[Completion, list[float]]:
        completion = await engine.sample(request("a", prompt, temperature=temperature, max_tokens=20))
        return completion, await engine.logprobs([*prompt, *completion.token_ids], temperature)

    completion, recomputed_by_engine = play(scenario)
    assert_parity(prompt, completion, temperature)
    assert completion.sampled_logprobs == pytest.approx(recomputed_by_engine[len(prompt) - 1 :], abs=1e-4)


def test_top_p_reports_the_renormalized_distribution() -> None:
    prompt = some_ids(3, 5)
    completion = play(lambda engine: engine.sample(request("a", prompt, top_p=0.5, max_tokens=30)))
    whole = recomputed(prompt, completion)
    # Renormalizing what is left of at least half of the mass raises a log-probability by at most log 2.
    assert all(-1e-4 <= kept - full <= 0.6932 for kept, full in zip(completion.sampled_logprobs, whole, strict=True))
    assert any(kept - full > 0.05 for kept, full in zip(completion.sampled_logprobs, whole, strict=True))


def test_a_stop_id_ends_the_turn_and_is_part_of_it() -> None:
    prompt = some_ids(4, 5)

    async def scenario(engine: TorchEngine) -> tuple[Completion, Completion]:
        free = await engine.sample(request("a", prompt, max_tokens=20))
        stop = free.token_ids[3]
        return free, await engine.sample(request("b", prompt, max_tokens=20, stop_ids=frozenset({stop})))

    free, stopped = play(scenario)
    end = free.token_ids.index(free.token_ids[3]) + 1
    assert stopped.token_ids == free.token_ids[:end]
    assert stopped.stop_reason is StopReason.STOP


def test_a_turn_ends_at_max_tokens_and_at_the_end_of_the_context() -> None:
    async def scenario(engine: TorchEngine) -> list[Completion]:
        short = await engine.sample(request("a", [1, 2], max_tokens=1))
        return [short, await engine.sample(request("b", some_ids(5, CONTEXT - 3), max_tokens=50))]

    short, full = play(scenario)
    assert [len(short.token_ids), len(full.token_ids)] == [1, 3]
    assert [short.stop_reason, full.stop_reason] == [StopReason.LENGTH, StopReason.LENGTH]


def test_tokens_are_announced_one_by_one_in_the_event_loop() -> None:
    heard: list[int] = []

    async def scenario(engine: TorchEngine) -> Completion:
        here = threading.get_ident()

        def on_token(token: int) -> None:
            assert threading.get_ident() == here
            heard.append(token)

        return await engine.sample(request("a", [1, 2, 3]), on_token)

    completion = play(scenario)
    assert tuple(heard) == completion.token_ids


def test_prompts_that_can_never_work_are_refused_with_numbers() -> None:
    def refusal(expected: type[Exception], prompt: Sequence[int], **options: Any) -> str:
        with pytest.raises(expected) as caught:
            play(lambda engine: engine.sample(request("a", prompt)), **options)
        return str(caught.value)

    assert "256 tokens" in refusal(ContextOverflow, some_ids(6, CONTEXT))
    assert "context of 128" in refusal(ContextOverflow, some_ids(6, 128), kv_cache_tokens=128)
    assert "vocabulary of 60" in refusal(ValueError, [1, 60])
    assert "no token" in refusal(ValueError, [])


# Sharing what is computed.


def test_the_next_turn_feeds_only_what_is_new() -> None:
    prompt, reply = some_ids(7, 20), some_ids(8, 5)

    async def scenario(engine: TorchEngine) -> tuple[Completion, list[int], Completion]:
        first = await engine.sample(request("a", prompt, max_tokens=6))
        longer = [*prompt, *first.token_ids, *reply]
        return first, longer, await engine.sample(request("a", longer, max_tokens=4))

    first, longer, second = play(scenario)
    # 20 of the prompt and 5 of the 6 sampled (the last is not fed); then that one, the 5 new and 3 of the 4 sampled
    assert (first.num_computed_tokens, second.num_computed_tokens) == (25, 9)
    assert_parity(prompt, first)
    assert_parity(longer, second)


def test_a_group_computes_its_prompt_once() -> None:
    prompt = some_ids(9, 40)

    async def scenario(engine: TorchEngine) -> list[Completion]:
        return await asyncio.gather(*[engine.sample(request(f"m{i}", prompt, seed=i, max_tokens=3)) for i in range(8)])

    completions = play(scenario)
    # One member feeds 39 tokens for all; each of the 8 feeds the last one and 2 of its 3 sampled tokens.
    assert sum(completion.num_computed_tokens for completion in completions) == 39 + 8 * 3
    assert len({completion.token_ids for completion in completions}) > 1
    for completion in completions:
        assert_parity(prompt, completion)


def test_tasks_share_what_their_prompts_have_in_common() -> None:
    system, questions = some_ids(10, 40), [some_ids(20 + task, 10) for task in range(3)]
    prompts = [[*system, task, *question] for task, question in enumerate(questions) for _ in range(2)]

    async def scenario(engine: TorchEngine) -> list[Completion]:
        return await asyncio.gather(
            *[engine.sample(request(f"s{i}", prompt, seed=i, max_tokens=1)) for i, prompt in enumerate(prompts)]
        )

    completions = play(scenario)
    # The system prompt once, three questions of 11 without their last token, and that last token of each of the 6.
    assert sum(completion.num_computed_tokens for completion in completions) == 40 + 3 * 10 + 6
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_parity(prompt, completion)


def test_many_rows_read_a_long_common_prompt_together(monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []
    original = cached_forward._Run._attend_shared

    def attend(run: Any, queries: torch.Tensor, *cache: torch.Tensor) -> torch.Tensor:
        together.append(len(queries))
        return original(run, queries, *cache)

    monkeypatch.setattr(cached_forward._Run, "_attend_shared", attend)
    common = some_ids(13, 70)
    prompts = [[*common, *some_ids(50 + i, 1 + i % 7)] for i in range(24)]

    async def scenario(engine: TorchEngine) -> list[Completion]:
        # Every third leaves early, so that the others have gaps between them.
        lengths = [3 if i % 3 == 0 else 12 for i in range(24)]
        return await asyncio.gather(
            *[engine.sample(request(f"s{i}", prompts[i], seed=i, max_tokens=lengths[i])) for i in range(24)]
        )

    completions = play(scenario)
    assert together
    assert max(together) >= 24
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_parity(prompt, completion)


def test_a_changed_history_is_read_from_where_it_changed() -> None:
    prompt = some_ids(11, 30)
    changed = [*prompt[:20], *some_ids(12, 15)]

    async def scenario(engine: TorchEngine) -> Completion:
        await engine.sample(request("a", prompt))
        return await engine.sample(request("a", changed, max_tokens=1))

    completion = play(scenario)
    assert completion.num_computed_tokens <= 15
    assert_parity(changed, completion)


# Running side by side.


def test_turns_join_and_leave_a_running_batch(gate: Gate) -> None:
    async def scenario(engine: TorchEngine) -> list[Completion]:
        long = asyncio.create_task(engine.sample(request("long", some_ids(30, 5), max_tokens=7)))
        gate.open(2)
        await until(lambda: len(gate.batches) == 3)
        short = asyncio.create_task(engine.sample(request("short", some_ids(31, 9), max_tokens=2)))
        await asyncio.sleep(0)  # the request is made; the third step has begun without it
        gate.open()
        return [await long, await short]

    long, short = play(scenario)
    assert gate.batches == [1, 1, 1, 2, 2, 1, 1]
    assert_parity(some_ids(30, 5), long)
    assert_parity(some_ids(31, 9), short)


def test_a_cancelled_turn_frees_its_slot_before_the_next_step(gate: Gate) -> None:
    async def scenario(engine: TorchEngine) -> Completion:
        first = asyncio.create_task(engine.sample(request("first", [1, 2, 3], max_tokens=200)))
        gate.open(1)
        await until(lambda: len(gate.batches) == 2)
        second = asyncio.create_task(engine.sample(request("second", [4, 5, 6], max_tokens=2)))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        gate.open()
        return await second

    completion = play(scenario, max_running=1, kv_cache_tokens=64)  # one row, which must come back too
    # The step that had begun still holds the first turn; the two after it decode the second.
    assert gate.batches == [1, 1, 1, 1]
    assert_parity([4, 5, 6], completion)


def test_a_deadline_says_what_waited_and_frees_the_slot(gate: Gate) -> None:
    async def scenario(engine: TorchEngine) -> Completion:
        with pytest.raises(PolicyTimeout, match=r"session late: no answer to a prompt of 3 .* 0\.\d s: 0 of"):
            await engine.sample(request("late", [1, 2, 3], deadline=time.monotonic() + 0.05))
        gate.open()
        return await engine.sample(request("next", [4, 5], max_tokens=2))

    assert len(play(scenario, max_running=1).token_ids) == 2


def test_a_deadline_that_has_passed_is_a_timeout_at_once() -> None:
    with pytest.raises(PolicyTimeout):
        play(lambda engine: engine.sample(request("a", [1], deadline=time.monotonic() - 1)))


def test_closing_fails_what_is_not_complete(gate: Gate) -> None:
    async def scenario(engine: TorchEngine) -> None:
        turn = asyncio.create_task(engine.sample(request("a", [1, 2], max_tokens=100)))
        await until(lambda: bool(engine._running))
        closing = asyncio.create_task(engine.close())
        await until(lambda: engine._is_closed)
        gate.open()
        await closing
        with pytest.raises(InfrastructureError, match="closed before"):
            await turn
        with pytest.raises(InfrastructureError, match="is closed"):
            await engine.sample(request("b", [1, 2]))

    play(scenario)


def test_a_failing_step_fails_its_turns_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = LeanForward.decode, []

    def decode(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return original(*arguments)

    monkeypatch.setattr(LeanForward, "decode", decode)

    async def scenario(engine: TorchEngine) -> Completion:
        with pytest.raises(InfrastructureError, match="out of memory"):
            await engine.sample(request("a", [1, 2, 3]))
        return await engine.sample(request("a", [1, 2, 3], seed=5))

    assert_parity([1, 2, 3], play(scenario))


def test_the_same_seed_gives_the_same_tokens_alone_and_in_any_company() -> None:
    def wanted(i: int) -> SampleRequest:
        return request(f"s{i}", some_ids(40 + i % 3, 10 + i), seed=i, max_tokens=12)

    async def together(engine: TorchEngine, order: list[int]) -> dict[int, tuple[int, ...]]:
        completions = await asyncio.gather(*[engine.sample(wanted(i)) for i in order])
        return {i: completion.token_ids for i, completion in zip(order, completions, strict=True)}

    alone = {i: play(lambda engine, i=i: engine.sample(wanted(i))).token_ids for i in range(6)}
    assert play(lambda engine: together(engine, [0, 1, 2, 3, 4, 5])) == alone
    assert play(lambda engine: together(engine, [4, 2, 5, 0, 3, 1]), max_running=2) == alone


# Bounded memory.


def test_more_sessions_than_rows_evict_each_other_and_stay_exact() -> None:
    async def episode(engine: TorchEngine, i: int) -> None:
        history = some_ids(50 + i, 30)
        for turn in range(3):
            completion = await engine.sample(request(f"s{i}", history, seed=10 * i + turn, max_tokens=20))
            assert len(completion.token_ids) == 20
            assert_parity(history, completion)
            history = [*history, *completion.token_ids, *some_ids(i + turn, 4)]
        engine.close_session(f"s{i}")

    async def scenario(engine: TorchEngine) -> None:
        await asyncio.gather(*[episode(engine, i) for i in range(6)])

    play(scenario, kv_cache_tokens=CONTEXT)  # two histories of 128 at a time


def test_turns_that_outgrow_the_cache_together_take_turns() -> None:
    async def scenario(engine: TorchEngine) -> list[Completion]:
        return await asyncio.gather(
            *[engine.sample(request(f"s{i}", some_ids(60 + i, 20), seed=i, max_tokens=200)) for i in range(4)]
        )

    completions = play(scenario, kv_cache_tokens=CONTEXT)
    for i, completion in enumerate(completions):
        assert len(completion.token_ids) == 200
        assert_parity(some_ids(60 + i, 20), completion)
    # 20 + 199 tokens each if nobody had to read its history again
    assert sum(completion.num_computed_tokens for completion in completions) > 4 * 219


# Weights that change.


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


def test_a_running_turn_keeps_its_weights_beside_turns_of_newer_ones(gate: Gate) -> None:
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


# Deterministic rounds.


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
    sessions that nobody opened in between."""

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
        await engine.sample(request("a", [1, 2], max_tokens=1))  # b is not waited for any more

    play(scenario, deterministic=True)
    assert gate.batches == [2, 2, 1]


# Everything at once.


@given(seed=st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_every_sampled_token_has_the_log_probability_that_training_recomputes(seed: int) -> None:
    rng = random.Random(seed)
    shared = some_ids(seed, rng.randrange(40))
    options = {
        "max_running": rng.choice([2, 5, 16]),
        "kv_cache_tokens": rng.choice([256, 600, 4096]),
        "prefill_chunk_tokens": rng.choice([16, 64]),
        "session_weights": rng.choice(["latest", "pinned"]),
        "deterministic": rng.random() < 0.5,
    }

    async def episode(engine: TorchEngine, i: int) -> None:
        engine.open_session(f"s{i}")
        history = [*shared, *some_ids(seed + i // 3, rng.randrange(1, 20))]
        temperature = rng.choice([0.0, 0.8, 1.0])
        newest = 0
        for turn in range(rng.randrange(1, 4)):
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            completion = await engine.sample(
                request(f"s{i}", history, seed=i, temperature=temperature, max_tokens=rng.randrange(1, 25))
            )
            assert_parity(history, completion, temperature)
            ((version, count),) = completion.versions
            assert (count, completion.fingerprint) == (len(completion.token_ids), versions[version].fingerprint)
            assert version >= newest
            newest = version
            history = [*history, *completion.token_ids, *some_ids(turn, rng.randrange(1, 9))]
        engine.close_session(f"s{i}")

    async def learner(engine: TorchEngine) -> None:
        for version in range(1, 4):
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0.0005)
            await engine.load_weights(versions[version], version)

    async def nuisance(engine: TorchEngine) -> None:
        for i in range(4):
            with pytest.raises(PolicyTimeout):
                await engine.sample(
                    request(f"x{i}", [*shared, 1], max_tokens=200, deadline=time.monotonic() + rng.random() * 0.004)
                )

    versions: list[Weights] = [FIRST, SECOND, FIRST, SECOND]

    async def scenario(engine: TorchEngine) -> None:
        await asyncio.gather(learner(engine), nuisance(engine), *[episode(engine, i) for i in range(9)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached_forward, "MIN_SHARING_ROWS", rng.choice([2, 16]))
        patch.setattr(cached_forward, "MIN_SHARED_PROMPT", rng.choice([1, 20]))
        play(scenario, **options)
