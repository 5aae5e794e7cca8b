"""Turns with equal histories are computed once, and each samples as if it were alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.chat import ByteTokenizer
from sparring.engines.logits_cache import ENTRY_BYTES, LogitsCache, extend_digest, history_digest
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import PolicyTimeout
from sparring.models.policy import Policy
from sparring.types import Completion, Constraint, SampleRequest
from tests.engines.playing import FIRST, SECOND, Gate, assert_parity, play, request, some_ids, until

SURE = 0.3
"""A temperature at which turns often draw the same token."""


def make_byte_policy(tokenizer: ByteTokenizer) -> Policy:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Policy(LlamaForCausalLM(LlamaConfig(vocab_size=tokenizer.num_tokens, **sizes)), tokenizer, max_positions=256)


def play_alone(requests: Sequence[SampleRequest]) -> list[Completion]:
    """Sample each request with an engine of its own."""
    return [play(lambda engine, one=one: engine.sample(one)) for one in requests]


def play_together(
    requests: Sequence[SampleRequest], drafted: list[int] | None = None, **options: Any
) -> list[Completion]:
    """Sample the requests with one engine. The tokens of its drafts are appended to `drafted`."""

    async def scenario(engine: TorchEngine) -> list[Completion]:
        propose = engine._drafts.propose

        def record(ids: Sequence[int], limit: int) -> list[int]:
            draft = propose(ids, limit)
            if drafted is not None:
                drafted.extend(draft)
            return draft

        engine._drafts.propose = record  # pyright: ignore[reportAttributeAccessIssue]
        for one in requests:
            engine.open_session(one.session_id)
        return await asyncio.gather(*(engine.sample(one) for one in requests))

    return play(scenario, **options)


def list_histories(completions: Sequence[tuple[SampleRequest, Completion]]) -> set[tuple[int, ...]]:
    """Return all histories that a token was sampled from, and all beginnings of prompts: what must be computed."""
    whole = [(*one.prompt_ids, *completion.token_ids[:-1]) for one, completion in completions]
    return {ids[:end] for ids in whole for end in range(1, len(ids) + 1)}


@settings(max_examples=15, deadline=None)
@given(
    prompts=st.lists(st.integers(0, 2), min_size=2, max_size=7),
    temperature=st.sampled_from([0.0, SURE, 1.0]),
    is_deterministic=st.booleans(),
    max_running=st.sampled_from([1, 3, 64]),
)
def test_a_batch_samples_the_tokens_of_turns_that_are_alone(
    prompts: list[int], temperature: float, is_deterministic: bool, max_running: int
) -> None:
    requests = [
        request(f"s{place}", some_ids(number, 20), seed=place, max_tokens=12, temperature=temperature, order=(place,))
        for place, number in enumerate(prompts)
    ]
    drafted: list[int] = []
    together = play_together(requests, drafted, deterministic=is_deterministic, max_running=max_running)
    for one, shared, alone in zip(requests, together, play_alone(requests), strict=True):
        assert shared.token_ids == alone.token_ids
        # A temperature below 1 enlarges the rounding errors of logits.
        assert shared.sampled_logprobs == pytest.approx(alone.sampled_logprobs, abs=1e-5 / (temperature or 1.0))
        assert_parity(one.prompt_ids, shared, temperature)
    if max_running > 1:
        computed = sum(completion.num_computed_tokens for completion in together)
        num_distinct = len(list_histories(list(zip(requests, together, strict=True))))
        # A token of a draft that no turn draws is the only one that is computed without being a history.
        assert num_distinct <= computed <= num_distinct + len(drafted)


def test_turns_with_other_settings_share_the_computation_and_keep_their_distributions() -> None:
    prompt = some_ids(1, 20)
    requests = [
        request(f"s{place}", prompt, seed=place, max_tokens=6, temperature=temperature, top_p=top_p)
        for place, (temperature, top_p) in enumerate([(1.0, 1.0), (0.5, 1.0), (0.0, 1.0), (1.0, 0.5), (0.5, 1.0)])
    ]
    together = play_together(requests)
    for shared, alone in zip(together, play_alone(requests), strict=True):
        assert shared.token_ids == alone.token_ids
        assert shared.sampled_logprobs == pytest.approx(alone.sampled_logprobs, abs=1e-5)
    assert sum(one.num_computed_tokens for one in together) == len(
        list_histories(list(zip(requests, together, strict=True)))
    )


def test_a_later_turn_draws_from_the_logits_of_an_earlier_one() -> None:
    prompt = some_ids(2, 20)

    async def scenario(engine: TorchEngine) -> list[Completion]:
        return [
            await engine.sample(request(name, prompt, seed=seed, temperature=SURE))
            for name, seed in (("a", 1), ("b", 1), ("c", 2))
        ]

    first, same, other = play(scenario)
    assert (same.token_ids, same.num_computed_tokens) == (first.token_ids, 0)
    shared = sum(one == two for one, two in zip(first.token_ids, other.token_ids, strict=True))
    assert 0 < shared < 8, "the seeds must part on the way"
    assert other.num_computed_tokens < 8
    assert_parity(prompt, other, SURE)


def test_no_logits_of_other_weights_are_used() -> None:
    prompt = some_ids(3, 20)

    async def scenario(engine: TorchEngine) -> list[Completion]:
        before = await engine.sample(request("a", prompt, seed=1))
        await engine.load_weights(SECOND, 1)
        after = await engine.sample(request("b", prompt, seed=1))
        await engine.load_weights(FIRST, 2)
        return [before, after, await engine.sample(request("c", prompt, seed=1))]

    before, after, again = play(scenario)
    assert after.num_computed_tokens == before.num_computed_tokens == again.num_computed_tokens == 27
    assert again.token_ids == before.token_ids != after.token_ids
    assert_parity(prompt, after)


def test_turns_of_two_versions_with_equal_weights_share_a_row_and_report_their_own(gate: Gate) -> None:
    """A step without a gradient publishes the same weights again, while turns run."""
    prompt = some_ids(8, 20)

    async def scenario(engine: TorchEngine) -> list[Completion]:
        first = asyncio.create_task(engine.sample(request("a", prompt, seed=1)))
        await until(lambda: len(gate.batches) == 1)
        await engine.load_weights(FIRST, 5)
        second = asyncio.create_task(engine.sample(request("b", prompt, seed=1)))
        frozen = asyncio.create_task(engine.freeze(FIRST).sample(request("c", prompt, seed=2)))
        gate.open()
        return list(await asyncio.gather(first, second, frozen))

    first, second, frozen = play(scenario)
    assert first.token_ids == second.token_ids
    assert [one.versions[0][0] for one in (first, second)] == [0, 5]
    assert sum(one.num_computed_tokens for one in (first, second)) <= 27
    assert_parity(prompt, frozen)


def test_a_turn_without_an_open_session_neither_reads_nor_leaves_logits_in_deterministic_mode() -> None:
    prompt = some_ids(4, 20)

    async def scenario(engine: TorchEngine) -> list[int]:
        engine.open_session("a")
        counts = []
        for name in ("stranger", "a", "other stranger", "a"):
            counts.append((await engine.sample(request(name, prompt, seed=1))).num_computed_tokens)
        return counts

    # The second stranger copies the keys and values of the session's row, as before, but draws from its own logits.
    assert play(scenario, deterministic=True) == [27, 27, 8, 0]


def test_a_cancelled_turn_does_not_stop_the_turns_that_share_its_row(gate: Gate) -> None:
    prompt = some_ids(5, 20)

    async def scenario(engine: TorchEngine) -> tuple[Completion, list[int]]:
        first, second = (
            asyncio.create_task(engine.sample(request(name, prompt, seed=1, max_tokens=6))) for name in "ab"
        )
        await until(lambda: len(gate.batches) == 1)
        gate.open(2)
        await until(lambda: len(gate.batches) == 3)
        first.cancel()
        gate.open()
        return await second, list(gate.batches)

    completion, batches = play(scenario)
    assert completion.token_ids == play_alone([request("b", prompt, seed=1, max_tokens=6)])[0].token_ids
    assert batches == [1] * 6
    assert_parity(prompt, completion)


def test_a_deadline_of_one_turn_leaves_the_others() -> None:
    prompt = some_ids(6, 20)

    async def scenario(engine: TorchEngine) -> list[Any]:
        late = request("a", prompt, seed=1, max_tokens=200, deadline=0.0)
        return await asyncio.gather(
            engine.sample(late), engine.sample(request("b", prompt, seed=1)), return_exceptions=True
        )

    late, completion = play(scenario)
    assert isinstance(late, PolicyTimeout)
    assert_parity(prompt, completion)


def test_turns_that_lose_their_row_sample_the_same_tokens() -> None:
    # Rows of 64 to 128 tokens in a cache of 256: ten turns part and grow, and there is no room for all of them.
    requests = [
        request(f"s{place}", some_ids(place % 2, 20), seed=place, max_tokens=70, temperature=0.6) for place in range(10)
    ]
    together = play_together(requests, kv_cache_tokens=256)
    for shared, alone in zip(together, play_alone(requests), strict=True):
        assert shared.token_ids == alone.token_ids


def test_constrained_turns_share_a_row_and_keep_their_grammars() -> None:
    tokenizer = ByteTokenizer()
    policy = make_byte_policy(tokenizer)
    prompt = tuple(tokenizer.encode("question\n"))

    def constrained(place: int, words: Sequence[str]) -> SampleRequest:
        schema = json.dumps({"enum": list(words)})
        constraint = Constraint(grammar="start: @answer\n", schemas=(("answer", schema),))
        stop_ids = frozenset({ByteTokenizer.eos_token_id})
        return request(f"s{place}", prompt, seed=place, max_tokens=20, stop_ids=stop_ids, constraint=constraint)

    requests = [constrained(place, ["yes", "yea"] if place % 2 else ["yet", "no"]) for place in range(8)]

    async def scenario(together: Sequence[SampleRequest]) -> list[Completion]:
        engine = TorchEngine(policy, policy.snapshot())
        try:
            return await asyncio.gather(*(engine.sample(one) for one in together))
        finally:
            await engine.close()

    together = asyncio.run(scenario(requests))
    for place, (one, completion) in enumerate(zip(requests, together, strict=True)):
        text = tokenizer.decode(completion.token_ids[:-1])
        assert json.loads(text) in (["yes", "yea"] if place % 2 else ["yet", "no"])
        (alone,) = asyncio.run(scenario([one]))
        assert (alone.token_ids, alone.removed_mass) == (completion.token_ids, pytest.approx(completion.removed_mass))
    assert sum(one.num_computed_tokens for one in together) == len(
        list_histories(list(zip(requests, together, strict=True)))
    )


def test_the_least_recently_used_logits_are_dropped() -> None:
    logits = torch.zeros(100)
    cache = LogitsCache(max_bytes=2 * (400 + ENTRY_BYTES))
    for name in (b"1", b"2"):
        cache.add(("w", name), logits + len(name))
    assert cache.get(("w", b"1")) is not None
    cache.add(("w", b"1"), logits)  # again: it takes no more space
    cache.add(("v", b"3"), logits)
    assert cache.get(("w", b"2")) is None
    cache.drop(besides=frozenset({"w"}))
    assert cache.get(("v", b"3")) is None
    assert torch.equal(cache.get(("w", b"1")), logits)


def test_every_token_of_a_history_counts() -> None:
    ids = some_ids(7, 9)
    assert extend_digest(history_digest(ids), 3) != extend_digest(history_digest(ids), 4)
    assert history_digest(ids) != history_digest(ids[:-1])
    assert history_digest([1, 256]) != history_digest([256, 1])
