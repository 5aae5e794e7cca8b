"""The engine samples what it says it samples: against transformers, against a plain recomputation, under every disturbance."""

import asyncio
import random
import time

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ContextOverflow, PolicyTimeout
from sparring.models.policy import Policy
from sparring.types import Completion, SampleRequest, Sampling, StopReason, Weights

CONTEXT = 256
STOP = 2


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=60, max_position_embeddings=CONTEXT, tie_word_embeddings=True, eos_token_id=STOP, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return Policy(model, None, max_positions=CONTEXT)


def changed(weights: Weights, by: float) -> Weights:
    tensors = {name: tensor + by * torch.randn_like(tensor) for name, tensor in weights.tensors.items()}
    return Weights(tensors=tensors, fingerprint=f"changed by {by}")


def request(session: str, ids: list[int], *, seed: int = 0, temperature: float = 1.0, max_tokens: int = 12, **options):
    return SampleRequest(
        session_id=session, prompt_ids=tuple(ids), sampling=Sampling(temperature=temperature, max_tokens=max_tokens),
        stop_ids=frozenset({STOP}), seed=seed, **options,
    )  # fmt: skip


async def recomputed_difference(
    engine: TorchEngine, ids: list[int], completion: Completion, temperature: float
) -> float:
    """How far the reported log-probabilities are from those of one plain forward pass."""
    whole = await engine.logprobs([*ids, *completion.token_ids], temperature)
    return max(abs(a - b) for a, b in zip(whole[len(ids) - 1 :], completion.sampled_logprobs, strict=True))


async def episode(engine: TorchEngine, index: int, *, worst: list[float], seed: int) -> list[tuple[int, ...]]:
    """Three turns with tool results between; half of the sessions share a longer prompt."""
    rng = random.Random(index)
    shared = random.Random(99)
    ids = [shared.randrange(3, 60) for _ in range(20)] + ([rng.randrange(3, 60) for _ in range(5)] if index % 2 else [])
    session, temperature, played = f"s{index}", (1.0, 0.7, 0.0)[index % 3], []
    for turn in range(3):
        completion = await engine.sample(
            request(session, ids, seed=seed * 1000 + index * 10 + turn, temperature=temperature,
                    max_tokens=rng.randrange(3, 15), order=(index, turn))
        )  # fmt: skip
        worst.append(await recomputed_difference(engine, ids, completion, temperature or 1.0))
        played.append(completion.token_ids)
        ids = [*ids, *completion.token_ids, *(rng.randrange(3, 60) for _ in range(4))]
    engine.close_session(session)
    return played


def play(policy: Policy, *, indices: list[int], **options) -> tuple[dict[int, list[tuple[int, ...]]], float]:
    async def main():
        engine = TorchEngine(policy, policy.snapshot(), **options)
        worst: list[float] = []
        for index in indices:
            engine.open_session(f"s{index}")
        try:
            results = await asyncio.gather(*(episode(engine, index, worst=worst, seed=1) for index in indices))
        finally:
            await engine.close()
        return dict(zip(indices, results, strict=True)), max(worst)

    return asyncio.run(main())


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("num_rows", [1, 9, 40])
def test_sampled_logprobs_equal_a_recomputation_through_joins_leaves_sharing_and_eviction(
    policy: Policy, deterministic: bool, num_rows: int
) -> None:
    _, worst = play(
        policy, indices=list(range(12)), max_running=6, kv_cache_tokens=CONTEXT * num_rows, prefill_chunk_tokens=16,
        deterministic=deterministic,
    )  # fmt: skip
    assert worst <= 1e-4


def test_what_is_sampled_depends_on_the_seed_and_not_on_company(policy: Policy) -> None:
    together, _ = play(policy, indices=list(range(8)))
    shuffled, _ = play(policy, indices=[5, 2, 7, 0, 6, 3, 1, 4], max_running=3, prefill_chunk_tokens=16)
    alone, _ = play(policy, indices=[5])
    assert together == {index: shuffled[index] for index in together}
    assert alone[5] == together[5]


def test_greedy_tokens_are_those_of_transformers(policy: Policy) -> None:
    async def main() -> Completion:
        engine = TorchEngine(policy, policy.snapshot())
        try:
            return await engine.sample(request("s", [5, 6, 7, 8], temperature=0.0, max_tokens=16))
        finally:
            await engine.close()

    expected = policy.base.generate(
        torch.tensor([[5, 6, 7, 8]]), attention_mask=torch.ones(1, 4), max_new_tokens=16, do_sample=False,
        eos_token_id=STOP, pad_token_id=0,
    )  # fmt: skip
    assert list(asyncio.run(main()).token_ids) == expected[0, 4:].tolist()


def test_a_prompt_that_a_group_shares_is_computed_once(policy: Policy) -> None:
    prompt = [random.Random(3).randrange(3, 60) for _ in range(100)]

    async def main() -> list[Completion]:
        engine = TorchEngine(policy, policy.snapshot(), deterministic=True)
        for member in range(8):
            engine.open_session(f"m{member}")
        requests = [request(f"m{m}", prompt, seed=m, max_tokens=5, order=(m,)) for m in range(8)]
        try:
            return await asyncio.gather(*(engine.sample(one) for one in requests))
        finally:
            await engine.close()

    completions = asyncio.run(main())
    sampled = sum(len(completion.token_ids) for completion in completions)
    # 99 prompt tokens once; then each member feeds the last prompt token and all it samples but the last token.
    assert sum(completion.num_computed_tokens for completion in completions) == 99 + sampled


@pytest.mark.parametrize("session_weights", ["latest", "pinned"])
def test_a_weight_update_in_mid_episode_changes_later_turns_as_the_setting_says(
    policy: Policy, session_weights
) -> None:
    async def main() -> tuple[Completion, Completion, float]:
        engine = TorchEngine(policy, policy.snapshot(), session_weights=session_weights)
        try:
            ids = [5, 6, 7, 8]
            first = await engine.sample(request("s", ids))
            await engine.load_weights(changed(policy.snapshot(), 0.05), version=1)
            ids = [*ids, *first.token_ids, 9, 10]
            second = await engine.sample(request("s", ids, seed=1))
            if session_weights == "pinned":
                await engine.load_weights(policy.snapshot(), version=2)
            difference = await recomputed_difference(engine, ids, second, 1.0)
            return first, second, difference
        finally:
            await engine.close()

    first, second, difference = asyncio.run(main())
    assert first.versions == ((0, len(first.token_ids)),)
    assert second.versions == (((0 if session_weights == "pinned" else 1), len(second.token_ids)),)
    assert (second.fingerprint == first.fingerprint) == (session_weights == "pinned")
    assert difference <= 1e-4


def test_a_turn_that_is_running_keeps_the_weights_it_started_with(policy: Policy) -> None:
    async def main() -> tuple[Completion, float]:
        engine = TorchEngine(policy, policy.snapshot())
        started = asyncio.Event()
        ids = [5, 6, 7, 8]
        try:
            never_stops = SampleRequest(
                session_id="s", prompt_ids=tuple(ids), sampling=Sampling(max_tokens=200), stop_ids=frozenset(), seed=0
            )
            running = asyncio.ensure_future(engine.sample(never_stops, lambda _: started.set()))
            await started.wait()
            await engine.load_weights(changed(policy.snapshot(), 0.05), version=1)
            completion = await running
            await engine.load_weights(policy.snapshot(), version=2)
            return completion, await recomputed_difference(engine, ids, completion, 1.0)
        finally:
            await engine.close()

    completion, difference = asyncio.run(main())
    assert completion.versions == ((0, 200),)
    assert completion.stop_reason is StopReason.LENGTH
    assert difference <= 1e-4


def test_deterministic_rounds_do_not_depend_on_arrival(policy: Policy) -> None:
    async def main(order: list[int]) -> dict[int, tuple[float, ...]]:
        engine = TorchEngine(policy, policy.snapshot(), deterministic=True, prefill_chunk_tokens=16)
        for index in order:
            engine.open_session(f"s{index}")

        async def one(index: int) -> Completion:
            await asyncio.sleep(0.002 * order.index(index))
            return await engine.sample(request(f"s{index}", [5, 6, 7, 8 + index], seed=index, order=(index,)))

        try:
            completions = await asyncio.gather(*(one(index) for index in order))
        finally:
            await engine.close()
        return {i: completion.sampled_logprobs for i, completion in zip(order, completions, strict=True)}

    # Bit for bit, which batches composed by arrival would not give.
    assert asyncio.run(main([0, 1, 2, 3, 4])) == asyncio.run(main([3, 1, 4, 0, 2]))


def test_a_cancelled_request_frees_its_slot_at_once(policy: Policy) -> None:
    async def main() -> Completion:
        engine = TorchEngine(policy, policy.snapshot(), max_running=1, kv_cache_tokens=CONTEXT)
        started = asyncio.Event()
        endless = SampleRequest(
            session_id="a", prompt_ids=(5, 6), sampling=Sampling(max_tokens=250), stop_ids=frozenset(), seed=0
        )
        try:
            running = asyncio.ensure_future(engine.sample(endless, lambda _: started.set()))
            await started.wait()
            running.cancel()
            return await asyncio.wait_for(engine.sample(request("b", [7, 8], max_tokens=2)), timeout=10)
        finally:
            await engine.close()

    assert len(asyncio.run(main()).token_ids) <= 2


def test_a_deadline_ends_the_wait_and_says_what_was_waited_for(policy: Policy) -> None:
    async def main() -> None:
        engine = TorchEngine(policy, policy.snapshot(), deterministic=True)
        engine.open_session("slow")  # never asks, so the round never starts
        engine.open_session("s")
        try:
            await engine.sample(request("s", [5, 6], deadline=time.monotonic() + 0.05))
        finally:
            await engine.close()

    with pytest.raises(PolicyTimeout, match="session s: no answer to a prompt of 2 tokens"):
        asyncio.run(main())


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(policy: Policy) -> None:
    async def main() -> None:
        engine = TorchEngine(policy, policy.snapshot())
        try:
            await engine.sample(request("s", [5] * CONTEXT))
        finally:
            await engine.close()

    with pytest.raises(ContextOverflow, match=f"{CONTEXT} tokens leaves no room .* context of {CONTEXT}"):
        asyncio.run(main())
