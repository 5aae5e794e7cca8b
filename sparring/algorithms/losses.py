"""Losses per token, and the statistics that tell whether a step can be trusted. Pure functions.

All take log-probabilities [M] of the trained tokens under the current policy and under the policy that sampled them,
and advantages [M]; they return the loss of each token [M]. The caller weights and sums: reductions live in
`training.sequences`. rho = exp(logprob - sampled logprob).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor, Mapping[str, float]], Tensor]


def importance_sampling(logprobs_M: Tensor, sampled_M: Tensor, advantages_M: Tensor, _: Mapping[str, float]) -> Tensor:
    """-rho * A: the policy gradient corrected for the policy that sampled; unbounded, so best near on-policy."""
    return -(logprobs_M - sampled_M).exp() * advantages_M


def ppo(logprobs_M: Tensor, sampled_M: Tensor, advantages_M: Tensor, config: Mapping[str, float]) -> Tensor:
    """-min(rho * A, clip(rho, low, high) * A) (arXiv:1707.06347, equation 7).

    `clip_low_threshold` and `clip_high_threshold` bound the ratio itself (0.8 and 1.2), they are not epsilons.
    """
    ratio_M = (logprobs_M - sampled_M).exp()
    clipped_M = ratio_M.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -torch.minimum(ratio_M * advantages_M, clipped_M * advantages_M)


def cispo(logprobs_M: Tensor, sampled_M: Tensor, advantages_M: Tensor, config: Mapping[str, float]) -> Tensor:
    """-stopgrad(clip(rho, low, high)) * A * logprob (arXiv:2506.13585, equation 4): the weight of a token is bounded,
    its gradient is never dropped. Bounds are absolute ratios, 0 and 5 by default."""
    ratio_M = (logprobs_M - sampled_M).exp()
    weights_M = ratio_M.clamp(config["clip_low_threshold"], config["clip_high_threshold"]).detach()
    return -weights_M * advantages_M * logprobs_M


def cross_entropy(logprobs_M: Tensor, _: Tensor, __: Tensor, ___: Mapping[str, float]) -> Tensor:
    """-logprob: supervised learning of the masked tokens, for the warm start."""
    return -logprobs_M


LOSSES: dict[str, Loss] = {
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "cross_entropy": cross_entropy,
}


@torch.no_grad()
def ratio_statistics(
    logprobs_M: Tensor, sampled_M: Tensor, config: Mapping[str, float]
) -> dict[str, Tensor]:
    """Sums over tokens (names ending in _sum) and extremes of how far the policy is from the one that sampled.

    k1 = sampled - current and k3 = exp(-k1) - 1 + k1 estimate KL(sampler || policy) (joschu.net/blog/kl-approx.html).
    The effective sample size follows from the sums of the ratios and of their squares.
    """
    difference_M = logprobs_M - sampled_M
    ratio_M = difference_M.exp()
    low = config.get("clip_low_threshold", 0.0)
    high = config.get("clip_high_threshold", float("inf"))
    return {
        "count_sum": torch.tensor(float(len(ratio_M))),
        "ratio_sum": ratio_M.sum(),
        "ratio_squared_sum": ratio_M.square().sum(),
        "ratio_min": ratio_M.min(),
        "ratio_max": ratio_M.max(),
        "clipped_sum": ((ratio_M < low) | (ratio_M > high)).float().sum(),
        "difference_sum": difference_M.abs().sum(),
        "difference_max": difference_M.abs().max(),
        "k1_sum": -difference_M.sum(),
        "k3_sum": (ratio_M - 1 - difference_M).sum(),
    }
