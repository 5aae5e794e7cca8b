"""The same promises on CUDA: sampled log-probabilities equal a recomputation, and a training step reaches the adapter."""

import asyncio

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.engines.torch_engine import TorchEngine
from sparring.models.policy import LoraSettings, Policy
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch
from sparring.types import SampleRequest, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def policy(precision: str) -> Policy:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=1000,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=2,
    )
    return Policy(
        LlamaForCausalLM(config),
        None,
        precision=precision,
        device="cuda",
        max_positions=512,
        lora=LoraSettings(rank=8, alpha=16, targets=("q_proj", "v_proj", "down_proj")),
    )


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.3)])
def test_sampled_logprobs_equal_a_recomputation_on_cuda(precision: str, tolerance: float) -> None:
    trained = policy(precision)

    async def main() -> float:
        engine = TorchEngine(trained, trained.snapshot())
        worst = 0.0
        try:
            ids = list(range(10, 40))
            for turn in range(3):
                request = SampleRequest(
                    session_id="s",
                    prompt_ids=tuple(ids),
                    sampling=Sampling(max_tokens=20),
                    stop_ids=frozenset(),
                    seed=turn,
                )
                completion = await engine.sample(request)
                whole = await engine.logprobs([*ids, *completion.token_ids])
                pairs = zip(whole[len(ids) - 1 :], completion.sampled_logprobs, strict=True)
                worst = max(worst, *(abs(a - b) for a, b in pairs))
                ids = [*ids, *completion.token_ids, 7, 8, 9]
        finally:
            await engine.close()
        return worst

    assert asyncio.run(main()) <= tolerance


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_supervised_steps_lower_the_loss_on_cuda(precision: str) -> None:
    learner = TorchLearner(policy(precision))
    batch = build_demonstration_batch([(list(range(10, 60)), [False] * 10 + [True] * 40)])
    losses = []
    for _ in range(5):
        losses.append(learner.forward_backward(batch, "cross_entropy", {})["training/loss"])
        learner.optim_step(1e-2)
    assert losses[-1] < losses[0]
