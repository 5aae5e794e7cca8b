"""Engine and learner on the device of this machine: CUDA where there is one, otherwise the CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.engines.torch_engine import TorchEngine
from sparring.models.forest_attention import Ancestors, attend_by_branch, attend_with_kernel, has_kernel
from sparring.models.llama import Attend, LlamaShape
from sparring.models.policy import LoraSettings, Policy
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch
from sparring.types import Completion, SampleRequest, Sampling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LESSON = build_demonstration_batch([(list(range(10, 60)), [False] * 10 + [True] * 40)])
SHAPE = LlamaShape(
    num_layers=1, hidden_size=256, num_heads=8, num_kv_heads=2, head_dim=64, rms_eps=1e-5, vocab_size=1000
)


def make_policy(precision: str) -> Policy:
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
        device=DEVICE,
        max_positions=512,
        lora=LoraSettings(rank=8, alpha=16, targets=("q_proj", "v_proj", "down_proj")),
    )


async def sample(engine: TorchEngine, ids: Sequence[int], *, seed: int, temperature: float = 1.0) -> Completion:
    return await engine.sample(
        SampleRequest(
            session_id=f"s-{seed}",
            prompt_ids=tuple(ids),
            sampling=Sampling(max_tokens=20, temperature=temperature),
            stop_ids=frozenset(),
            seed=seed,
        )
    )


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.3)])
def test_sampled_logprobs_equal_a_recomputation(precision: str, tolerance: float) -> None:
    trained = make_policy(precision)

    async def main() -> float:
        engine = TorchEngine(trained, trained.snapshot())
        worst = 0.0
        try:
            ids = list(range(10, 40))
            for turn in range(3):
                completion = await sample(engine, ids, seed=turn)
                whole = await engine.logprobs([*ids, *completion.token_ids])
                pairs = zip(whole[len(ids) - 1 :], completion.sampled_logprobs, strict=True)
                worst = max(worst, *(abs(a - b) for a, b in pairs))
                ids = [*ids, *completion.token_ids, 7, 8, 9]
        finally:
            await engine.close()
        return worst

    assert asyncio.run(main()) <= tolerance


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_supervised_steps_lower_the_loss(precision: str) -> None:
    learner = TorchLearner(make_policy(precision))
    losses = []
    for _ in range(5):
        losses.append(learner.forward_backward(LESSON, "cross_entropy", {})["training/loss"])
        learner.optim_step(1e-2)
    assert losses[-1] < losses[0]


def test_an_engine_samples_the_same_while_a_learner_trains() -> None:
    trained = make_policy("fp32")
    first = trained.snapshot()

    async def main() -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        engine, learner = TorchEngine(trained, first), TorchLearner(trained)
        prompts = [range(10 + index, 40 + index) for index in range(8)]

        async def play(number: int) -> list[tuple[int, ...]]:
            turns = [sample(engine, one, seed=100 * number + place) for place, one in enumerate(prompts)]
            return [completion.token_ids for completion in await asyncio.gather(*turns)]

        def train() -> None:
            for _ in range(10):
                learner.forward_backward(LESSON, "cross_entropy", {})
                learner.optim_step(1e-2)

        try:
            alone = [ids for number in range(4) for ids in await play(number)]
            training = asyncio.create_task(asyncio.to_thread(train))
            while_training = [ids for number in range(4) for ids in await play(number)]
            await training
        finally:
            await engine.close()
        return alone, while_training

    alone, while_training = asyncio.run(main())
    assert alone == while_training


def test_new_weights_reach_the_engine() -> None:
    trained = make_policy("fp32")
    engine, learner = TorchEngine(trained, trained.snapshot()), TorchLearner(trained)
    ids = list(range(10, 60))

    async def main() -> tuple[list[float], list[float]]:
        try:
            before = await engine.logprobs(ids)
            for _ in range(5):
                learner.forward_backward(LESSON, "cross_entropy", {})
                learner.optim_step(1e-2)
            await engine.load_weights(learner.export_weights(), 1)
            return before, await engine.logprobs(ids)
        finally:
            await engine.close()

    before, after = asyncio.run(main())
    assert sum(after) > sum(before) + 1
    assert after[9:] == pytest.approx(learner.logprobs(LESSON), abs=1e-3)


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device: torch has no FlashAttention-2 for a CPU")
@pytest.mark.parametrize("seed", range(3))
def test_the_kernel_of_a_forest_equals_the_attention_of_each_branch(seed: int) -> None:
    sizes = [530, 140, 177, 1, 400]
    ancestors: list[Ancestors] = [(), ((0, 530),), ((0, 530), (1, 77)), (), ((0, 200),)]
    generator = torch.Generator("cuda").manual_seed(seed)
    inputs = [
        torch.randn(sum(sizes), heads, 64, generator=generator, device="cuda", dtype=torch.bfloat16)
        for heads in (8, 2, 2)
    ]
    weight = torch.randn(sum(sizes), 8 * 64, generator=generator, device="cuda")
    assert has_kernel(inputs[0], SHAPE.head_dim)

    def compute(attend: Attend, precision: torch.dtype) -> list[torch.Tensor]:
        q, k, v = (one.to(precision).requires_grad_() for one in inputs)
        out = attend(0, q, k, v)
        return [out.detach().float(), *(one.float() for one in torch.autograd.grad((out * weight).sum(), (q, k, v)))]

    found = compute(attend_with_kernel(sizes, ancestors, inputs[0].device), torch.bfloat16)
    others, exact = (
        compute(attend_by_branch(SHAPE, sizes, ancestors), precision) for precision in (torch.bfloat16, torch.float32)
    )
    for one, other, reference in zip(found, others, exact, strict=True):
        error = (one - reference).norm() / reference.norm()
        assert error < 0.01
        assert error < 1.5 * (other - reference).norm() / reference.norm()
