"""An engine whose adapter is not merged, or whose base is stored in bf16, samples as one with merged weights in fp32."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from sparring.engines.torch_engine import TorchEngine
from sparring.models.generic import GenericModel
from sparring.models.policy import LoraSettings, Policy
from sparring.models.products import AdaptedMatrix
from sparring.types import Completion, SampleRequest, Sampling, Weights

PROMPT = tuple((3 + 7 * place) % 60 for place in range(40))


def make_policy(base_precision: str, *, is_merged: bool | None) -> Policy:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=60,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    policy = Policy(
        model,
        None,
        max_positions=128,
        lora=LoraSettings(rank=3, alpha=6, targets=("q_proj", "v_proj", "up_proj"), is_merged=is_merged),
        base_precision=base_precision,
    )
    for name in sorted(policy.trained):
        values = torch.randn(policy.trained[name].shape, generator=torch.Generator().manual_seed(len(name)))
        policy.trained[name].data.copy_(values * 0.2)
    return policy


def play(policy: Policy) -> tuple[Completion, list[float]]:
    """Return a turn, and the log-probabilities of its tokens when they are scored as a whole."""

    async def run() -> tuple[Completion, list[float]]:
        engine = TorchEngine(policy, policy.snapshot(), prefill_chunk_tokens=16)
        try:
            request = SampleRequest(
                session_id="s",
                prompt_ids=PROMPT,
                sampling=Sampling(temperature=1.0, max_tokens=20),
                stop_ids=frozenset(),
                seed=0,
            )
            done = await engine.sample(request)
            return done, await engine.logprobs((*PROMPT, *done.token_ids))
        finally:
            await engine.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("base_precision", "is_merged"), [("fp32", False), ("bf16", False), ("bf16", True), ("fp32", None)]
)
def test_a_switch_leaves_the_sampled_tokens_and_their_logprobs(base_precision: str, is_merged: bool | None) -> None:
    expected, scored = play(make_policy("fp32", is_merged=True))
    found, rescored = play(make_policy(base_precision, is_merged=is_merged))
    assert found.token_ids == expected.token_ids
    assert found.sampled_logprobs == pytest.approx(expected.sampled_logprobs, abs=1e-4)
    assert rescored == pytest.approx(scored, abs=1e-4)
    assert found.sampled_logprobs == pytest.approx(rescored[len(PROMPT) - 1 :], abs=1e-4)


def test_the_generic_forward_shares_the_tensors_of_the_policy() -> None:
    config = GPTNeoXConfig(
        vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2
    )
    policy = Policy(GPTNeoXForCausalLM(config), None, lora=LoraSettings(rank=2, targets=("query_key_value",)))
    module = GenericModel(policy)._caller.module
    assert module is not policy.module
    assert {one.data_ptr() for one in module.parameters()} == {one.data_ptr() for one in policy.module.parameters()}


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("lora", [True, False])
def test_weights_of_a_file_reach_the_device_of_the_model(lora: bool, merged: bool) -> None:
    config = LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2)
    settings = LoraSettings(rank=2, targets=("q_proj", "down_proj"), is_merged=merged) if lora else None
    elsewhere = Policy(LlamaForCausalLM(config), None, lora=settings, device="meta")
    tensors = {name: torch.zeros(one.shape) for name, one in elsewhere.trained.items()}
    loaded = elsewhere.materialize(Weights(tensors=tensors, fingerprint="of a file"))
    found = [loaded.embed, loaded.lm_head, loaded.final_norm]
    for layer in loaded.layers:
        for matrix in layer.linears.values():
            parts = (matrix.base_O_I, *matrix.factors) if isinstance(matrix, AdaptedMatrix) else (matrix,)
            found += [part for part in parts if part is not None]
    assert {one.device.type for one in found} == {"meta"}
