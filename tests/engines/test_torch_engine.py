"""What the engine samples is what the policy would say: through sharing, joins, evictions and updates of weights."""

from __future__ import annotations

import asyncio
import copy
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.engines import decoding_attention
from sparring.engines.cached_forward import LeanForward
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ContextOverflow, InfrastructureError, PolicyTimeout
from sparring.types import Completion, SampleRequest, StopReason, Weights
from tests.engines.playing import (
    CONTEXT,
    FIRST,
    POLICY,
    SECOND,
    Gate,
    assert_parity,
    play,
    recomputed,
    request,
    some_ids,
    until,
)

# What a single turn is.


def test_greedy_tokens_are_those_of_transformers_generate() -> None:
    prompt = some_ids(1, 7)
    completion = play(lambda engine: engine.sample(request("a", prompt, temperature=0.0, max_tokens=30)))
    expected = POLICY.base.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, 7, dtype=torch.long),
        do_sample=False,
        max_new_tokens=30,
        eos_token_id=None,
        pad_token_id=0,
    )
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


def test_sampled_log_probabilities_are_near_exact_ones_and_at_most_twice_as_far_from_plain_peft() -> None:
    prompt = some_ids(2, 9)
    completion = play(lambda engine: engine.sample(request("a", prompt, max_tokens=60)))

    def of(module: Any) -> list[float]:
        with torch.no_grad():
            logits = module(torch.tensor([[*prompt, *completion.token_ids]])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1)[range(60), list(completion.token_ids)].tolist()

    plain, exact = of(POLICY.module), of(copy.deepcopy(POLICY.module).double())
    assert completion.sampled_logprobs == pytest.approx(exact, abs=1e-4)
    assert completion.sampled_logprobs == pytest.approx(plain, abs=2e-4)


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
    # One member feeds the 40 tokens for all, and then one member for each different beginning of an answer.
    beginnings = {completion.token_ids[:size] for completion in completions for size in (1, 2)}
    assert sum(completion.num_computed_tokens for completion in completions) == 40 + len(beginnings)
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
    # The system prompt once, and the three questions of 11 tokens.
    assert sum(completion.num_computed_tokens for completion in completions) == 40 + 3 * 11
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_parity(prompt, completion)


def test_many_rows_with_a_common_prompt_get_their_own_probabilities() -> None:
    common = some_ids(13, 70)
    prompts = [[*common, *some_ids(50 + i, 1 + i % 7)] for i in range(24)]

    async def scenario(engine: TorchEngine) -> list[Completion]:
        # Every third leaves early, so that the others have gaps between them.
        lengths = [3 if i % 3 == 0 else 12 for i in range(24)]
        return await asyncio.gather(
            *[engine.sample(request(f"s{i}", prompts[i], seed=i, max_tokens=lengths[i])) for i in range(24)]
        )

    for prompt, completion in zip(prompts, play(scenario), strict=True):
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


def test_a_deadline_names_what_waited_and_frees_the_slot(gate: Gate) -> None:
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
    # 20 + 199 tokens each if no session had to read its history again
    assert sum(completion.num_computed_tokens for completion in completions) > 4 * 219


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
        patch.setattr(decoding_attention, "MIN_SHARED", rng.choice([1, 20]))
        play(scenario, **options)
