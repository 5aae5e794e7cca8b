"""Architectures without the lean forward are sampled through transformers' own, with the same promises."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from sparring.engines.torch_engine import TorchEngine
from sparring.models.policy import LoraSettings, Policy
from sparring.types import Completion, SampleRequest, Sampling, Weights


@pytest.fixture(params=[None, 2], ids=["full", "lora"])
def policy(request: pytest.FixtureRequest) -> Policy:
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    made = Policy(
        GPTNeoXForCausalLM(config),
        None,
        max_positions=128,
        lora=None if request.param is None else LoraSettings(rank=request.param, alpha=4, targets=("query_key_value",)),
    )
    assert not made.is_lean
    return made


def asked(session_id: str, prompt: Sequence[int], *, seed: int = 0, temperature: float = 1.0) -> SampleRequest:
    return SampleRequest(
        session_id=session_id,
        prompt_ids=tuple(prompt),
        sampling=Sampling(temperature=temperature, max_tokens=10),
        stop_ids=frozenset(),
        seed=seed,
    )


def plain_logprobs(policy: Policy, weights: Weights, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
    """One forward of the whole sequence with these weights."""
    before = policy.snapshot()
    policy.restore(weights.tensors)
    with torch.no_grad():
        logprobs = policy.module(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
    policy.restore(before.tensors)
    return [logprobs[len(prompt) - 1 + place, token].item() for place, token in enumerate(answer)]


def changed(weights: Weights) -> Weights:
    torch.manual_seed(1)
    tensors = {name: tensor + 0.3 * torch.randn_like(tensor) for name, tensor in weights.tensors.items()}
    return Weights(tensors=tensors, fingerprint="changed")


def test_greedy_tokens_are_those_of_generate(policy: Policy) -> None:
    async def scenario() -> Completion:
        engine = TorchEngine(policy, policy.snapshot())
        try:
            return await engine.sample(asked("a", [1, 2, 3], temperature=0.0))
        finally:
            await engine.close()

    expected = policy.base.generate(
        torch.tensor([[1, 2, 3]]),
        attention_mask=torch.ones(1, 3, dtype=torch.long),
        do_sample=False,
        max_new_tokens=10,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert list(asyncio.run(scenario()).token_ids) == expected[0, 3:].tolist()


def test_log_probabilities_are_those_of_a_plain_forward_over_turns_company_and_an_update(policy: Policy) -> None:
    first, second = policy.snapshot(), changed(policy.snapshot())
    prompts = [[1, 2, 3], [1, 2, 3, 4], [5, 6]]

    async def scenario() -> list[tuple[Weights, list[int], Completion]]:
        # 128 tokens are two rows of 64: the third turn waits for a place.
        engine = TorchEngine(policy, first, kv_cache_tokens=128, prefill_chunk_tokens=16)
        shown = []
        try:
            answers = await asyncio.gather(*[engine.sample(asked(f"s{i}", p, seed=i)) for i, p in enumerate(prompts)])
            shown += [(first, list(p), answer) for p, answer in zip(prompts, answers, strict=True)]
            await engine.load_weights(second, 1)
            longer = [*prompts[0], *answers[0].token_ids, 7, 8]
            shown.append((second, longer, await engine.sample(asked("s0", longer))))
            recomputed = await engine.logprobs([*longer, *shown[-1][2].token_ids])
            assert shown[-1][2].sampled_logprobs == pytest.approx(recomputed[len(longer) - 1 :], abs=1e-4)
            return shown
        finally:
            await engine.close()

    for weights, prompt, completion in asyncio.run(scenario()):
        assert completion.fingerprint == weights.fingerprint
        expected = plain_logprobs(policy, weights, prompt, completion.token_ids)
        assert completion.sampled_logprobs == pytest.approx(expected, abs=1e-4)
        assert completion.num_computed_tokens == len(prompt) + 9  # every turn reads its whole history


def test_what_the_learner_does_to_the_module_does_not_reach_the_engine(policy: Policy) -> None:
    before = policy.snapshot()

    async def scenario() -> Completion:
        engine = TorchEngine(policy, before)
        try:
            policy.restore(changed(before).tensors)
            return await engine.sample(asked("a", [1, 2, 3]))
        finally:
            await engine.close()

    completion = asyncio.run(scenario())
    expected = plain_logprobs(policy, before, [1, 2, 3], completion.token_ids)
    assert completion.sampled_logprobs == pytest.approx(expected, abs=1e-4)
