"""Losses per token, and the statistics that tell whether a step can be trusted. Pure functions.

A loss takes log-probabilities [M] of the trained tokens under the current policy and under the policy that sampled
them, advantages [M], and its own settings. It returns the loss of each token [M] and what it did to each token, by
metric name, [M] each. The caller weights and sums, since reductions live in `training.sequences`, and averages the
metrics. rho = exp(logprob - sampled logprob).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

PerToken: TypeAlias = tuple[Tensor, dict[str, Tensor]]
Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor, Mapping[str, float]], PerToken]


def importance_sampling(
    logprobs_M: Tensor, sampled_M: Tensor, advantages_M: Tensor, config: Mapping[str, float]
) -> PerToken:
    """-rho * A: the policy gradient corrected for the policy that sampled; unbounded, so best near on-policy."""
    return -(logprobs_M - sampled_M).exp() * advantages_M, {}


def ppo(logprobs_M: Tensor, sampled_M: Tensor, advantages_M: Tensor, config: Mapping[str, float]) -> PerToken:
    """-min(rho * A, clip(rho, low, high) * A) (arXiv:1707.06347, equation 7).

    `clip_low_threshold` and `clip_high_threshold` bound the ratio itself (0.8 and 1.2), they are not epsilons.
    `clip_fraction` is the share of tokens whose gradient the clip removed.
    """
    ratio_M = (logprobs_M - sampled_M).exp()
    low, high = config["clip_low_threshold"], config["clip_high_threshold"]
    free_M, clipped_M = ratio_M * advantages_M, ratio_M.clamp(low, high) * advantages_M
    return -torch.minimum(free_M, clipped_M), {"clip_fraction": (clipped_M < free_M).float()}


def cispo(logprobs_M: Tensor, sampled_M: Tensor, advantages_M: Tensor, config: Mapping[str, float]) -> PerToken:
    """-stopgrad(clip(rho, low, high)) * A * logprob (arXiv:2506.13585, equation 4).

    The weight of a token is bounded, its gradient is never dropped. Bounds are absolute ratios (0 and 5).
    `clip_fraction` is the share of tokens whose weight was bounded.
    """
    ratio_M = (logprobs_M - sampled_M).exp().detach()
    weights_M = ratio_M.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -weights_M * advantages_M * logprobs_M, {"clip_fraction": (weights_M != ratio_M).float()}


def cross_entropy(logprobs_M: Tensor, sampled_M: Tensor, advantages_M: Tensor, config: Mapping[str, float]) -> PerToken:
    """-logprob: supervised learning of the masked tokens, for the warm start."""
    return -logprobs_M, {}


LOSSES: dict[str, Loss] = {
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "cross_entropy": cross_entropy,
}


@torch.no_grad()
def loss_metrics(logprobs_M: Tensor, sampled_M: Tensor) -> dict[str, Tensor]:
    """How far the policy is from the one that sampled, over M >= 1 tokens; scalars.

    `kl_k1` = mean(-log rho) and `kl_k3` = mean(rho - 1 - log rho) estimate KL(sampler || policy)
    (joschu.net/blog/kl-approx.html). `effective_sample_size` = (sum rho)^2 / (M sum rho^2) is a share: 1 on-policy.
    """
    difference_M = logprobs_M - sampled_M
    ratio_M = difference_M.exp()
    return {
        "ratio_mean": ratio_M.mean(),
        "ratio_min": ratio_M.min(),
        "ratio_max": ratio_M.max(),
        "effective_sample_size": ratio_M.mean().square() / ratio_M.square().mean(),
        "logprob_difference_mean": difference_M.abs().mean(),
        "logprob_difference_max": difference_M.abs().max(),
        "kl_k1": -difference_M.mean(),
        "kl_k3": (ratio_M - 1 - difference_M).mean(),
    }
