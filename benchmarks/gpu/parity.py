"""Compares the log-probabilities of engine and learner on the same tokens: the mean difference and the tail of the
differences."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from benchmarks.gpu.models import build_policy
from sparring.engines.torch_engine import TorchEngine
from sparring.models.policy import Policy
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch
from sparring.types import Completion, SampleRequest, Sampling


def measure_parity(shape: str, device: str, *, sessions: int, new_tokens: int) -> list[dict[str, Any]]:
    """Sample from random prompts, recompute the log-probabilities with the learner, and return the differences."""
    policy = build_policy(shape, device)
    prompts = [
        torch.randint(3, policy.base.config.vocab_size, (64,), generator=torch.Generator().manual_seed(index)).tolist()
        for index in range(sessions)
    ]
    completions = asyncio.run(_sample(policy, prompts, new_tokens))
    batch = build_demonstration_batch(
        [
            ([*prompt, *one.token_ids], [False] * len(prompt) + [True] * len(one.token_ids))
            for prompt, one in zip(prompts, completions, strict=True)
        ]
    )
    sampled = torch.tensor([value for one in completions for value in one.sampled_logprobs])
    recomputed = torch.as_tensor(TorchLearner(policy).logprobs(batch)).float().cpu()
    # Prompts that share no tokens are packed in order, so both sides have the same order.
    differences = (sampled - recomputed).abs()
    return [
        {
            "shape": shape,
            "what": "log-probabilities, engine - learner",
            "tokens": len(sampled),
            "mean |difference|": differences.mean().item(),
            "99th percentile": differences.quantile(0.99).item(),
            "largest": differences.max().item(),
        }
    ]


async def _sample(policy: Policy, prompts: list[list[int]], new_tokens: int) -> list[Completion]:
    engine = TorchEngine(policy, policy.snapshot(), max_running=len(prompts))
    try:
        return await asyncio.gather(
            *(
                engine.sample(
                    SampleRequest(
                        session_id=f"s-{index}",
                        prompt_ids=tuple(prompt),
                        sampling=Sampling(temperature=1.0, max_tokens=new_tokens),
                        stop_ids=frozenset(),
                        seed=index,
                    )
                )
                for index, prompt in enumerate(prompts)
            )
        )
    finally:
        await engine.close()
