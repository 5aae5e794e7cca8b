"""Losses per trained token, as pure functions. Reductions and corrections have their own modules.

A loss takes the trained tokens of a batch. It returns the loss of each token [M], and a mapping from names to metrics
[M]. Its keyword arguments are its hyperparameters, which are keys of `[algorithm]` with the same names and defaults.
rho = exp(logprob - old logprob) is the ratio to the sampling policy or, with `policy_ratio = "three_policy"`, to the
policy before the step. Bounds on rho are ratios, not distances from 1.

Shapes: M trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # The configuration reads these signatures and must load without torch.
    from torch import Tensor

PerToken: TypeAlias = "tuple[Tensor, dict[str, Tensor]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The trained tokens of one or more complete trajectories."""

    logprobs_M: Tensor
    """The log-probabilities under the current policy, with gradient."""
    old_M: Tensor
    """The log-probabilities under the policy in the ratio's denominator."""
    advantages_M: Tensor
    trajectory_M: Tensor
    """The index of each token's trajectory, from 0."""

    @property
    def ratio_M(self) -> Tensor:
        return (self.logprobs_M - self.old_M).exp()


def trajectory_means(values_M: Tensor, trajectory_M: Tensor) -> Tensor:
    """Return the mean over each trajectory's tokens, [trajectories]."""
    count = int(trajectory_M.max()) + 1 if len(trajectory_M) else 0
    sums = values_M.new_zeros(count).index_add(0, trajectory_M, values_M)
    return sums / trajectory_M.bincount(minlength=count).to(values_M.dtype)


def importance_sampling(tokens: Tokens) -> PerToken:
    """Return -rho * A, the policy gradient with importance sampling. It is unbounded, so it works best on data that is
    nearly on-policy."""
    return -tokens.ratio_M * tokens.advantages_M, {}


def ppo(
    tokens: Tokens,
    *,
    clip_low_threshold: float = 0.8,
    clip_high_threshold: float = 1.2,
    dual_clip: float | None = None,
) -> PerToken:
    """Return -min(rho * A, clip(rho, low, high) * A) (arXiv:1707.06347, equation 7).

    `dual_clip` c > 1 bounds the loss of tokens with a negative advantage: for A < 0, the loss is at most -c * A
    (arXiv:1912.09729, equation 5). `clip_fraction` is the share of tokens whose gradient was removed.
    """
    ratio_M, advantages_M = tokens.ratio_M, tokens.advantages_M
    free_M = ratio_M * advantages_M
    clipped_M = ratio_M.clamp(clip_low_threshold, clip_high_threshold) * advantages_M
    is_clipped_M = clipped_M < free_M
    gain_M = free_M.minimum(clipped_M)
    if dual_clip is not None:
        least_M = dual_clip * advantages_M
        is_too_costly_M = (advantages_M < 0) & (gain_M < least_M)
        is_clipped_M = is_clipped_M | is_too_costly_M
        gain_M = least_M.where(is_too_costly_M, gain_M)
    return -gain_M, {"clip_fraction": is_clipped_M.float()}


def cispo(tokens: Tokens, *, clip_low_threshold: float = 0.0, clip_high_threshold: float = 5.0) -> PerToken:
    """Return -stopgrad(clip(rho, low, high)) * A * logprob (arXiv:2506.13585, equation 4).

    The weight of a token is bounded, but its gradient is never dropped. `clip_fraction` is the share of tokens whose
    weight was bounded.
    """
    ratio_M = tokens.ratio_M.detach()
    weights_M = ratio_M.clamp(clip_low_threshold, clip_high_threshold)
    return -weights_M * tokens.advantages_M * tokens.logprobs_M, {"clip_fraction": (weights_M != ratio_M).float()}


def gspo(tokens: Tokens, *, clip_low_threshold: float = 0.9997, clip_high_threshold: float = 1.0004) -> PerToken:
    """Return -min(s * A, clip(s, low, high) * A) with one ratio s = exp(mean(log rho)) per trajectory.

    See arXiv:2507.18071, equations 5 and 7. The gradient of a token is the gradient of s * rho / stopgrad(rho)
    (equation 10). The loss is meant for `loss_reduction = "trajectory_mean"`. The default bounds are 3e-4 below and
    4e-4 above 1, as in the paper.
    """
    log_ratio_M = tokens.logprobs_M - tokens.old_M
    means = trajectory_means(log_ratio_M.detach(), tokens.trajectory_M)
    ratio_M = (means[tokens.trajectory_M] + tokens.logprobs_M - tokens.logprobs_M.detach()).exp()
    free_M = ratio_M * tokens.advantages_M
    clipped_M = ratio_M.clamp(clip_low_threshold, clip_high_threshold) * tokens.advantages_M
    return -free_M.minimum(clipped_M), {"clip_fraction": (clipped_M < free_M).float()}


def gpg(tokens: Tokens) -> PerToken:
    """Return -A * logprob, the plain policy gradient (arXiv:2504.02546, equation 6).

    It ignores the sampling policy, so it is correct only for on-policy data.
    """
    return -tokens.advantages_M * tokens.logprobs_M, {}


def dppo_tv(
    tokens: Tokens, *, tv_low_threshold: float = 0.2, tv_high_threshold: float = 0.2, ratio_cap: float = 20.0
) -> PerToken:
    """Return -stopgrad(min(rho, cap)) * A * logprob, or 0 for tokens whose probability has already changed too much.

    This is DPPO with binary total variation (arXiv:2602.04879, section 5). A token with a positive advantage gets 0 if
    p - p_old > high, and a token with a negative advantage gets 0 if p_old - p > low. The thresholds apply to
    probabilities rather than ratios, so that rare tokens are not clipped for small changes. `clip_fraction` is the
    share of tokens that get 0.
    """
    moved_M = (tokens.logprobs_M.exp() - tokens.old_M.exp()).detach()
    is_free_M = (moved_M <= tv_high_threshold).where(tokens.advantages_M > 0, moved_M >= -tv_low_threshold)
    weights_M = tokens.ratio_M.detach().clamp(max=ratio_cap) * is_free_M
    return -weights_M * tokens.advantages_M * tokens.logprobs_M, {"clip_fraction": 1.0 - is_free_M.float()}


def cross_entropy(tokens: Tokens) -> PerToken:
    """Return -logprob, for supervised learning on the trained tokens in the warm start."""
    return -tokens.logprobs_M, {}


LOSSES: dict[str, Callable[..., PerToken]] = {
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "gspo": gspo,
    "gpg": gpg,
    "dppo_tv": dppo_tv,
    "cross_entropy": cross_entropy,
}


def policy_metrics(logprobs_M: Tensor, sampled_M: Tensor) -> dict[str, Tensor]:
    """Return scalar metrics of the distance between the policy and the sampling policy, over M >= 1 tokens.

    `kl_k1` = mean(-log rho), `kl_k2` = mean(log rho ** 2) / 2 and `kl_k3` = mean(rho - 1 - log rho) estimate KL(sampler
    || policy) (joschu.net/blog/kl-approx.html). `effective_sample_size` = (sum rho)^2 / (M sum rho^2) is a share that
    is 1 for on-policy tokens.
    """
    difference_M = (logprobs_M - sampled_M).detach()
    ratio_M = difference_M.exp()
    return {
        "ratio_mean": ratio_M.mean(),
        "ratio_min": ratio_M.min(),
        "ratio_max": ratio_M.max(),
        "effective_sample_size": effective_sample_size(ratio_M),
        "logprob_difference_mean": difference_M.abs().mean(),
        "logprob_difference_max": difference_M.abs().max(),
        "kl_k1": -difference_M.mean(),
        "kl_k2": difference_M.square().mean() / 2,
        "kl_k3": (ratio_M - 1 - difference_M).mean(),
    }


def effective_sample_size(weights_M: Tensor) -> Tensor:
    """Return (sum w)^2 / (M sum w^2), a share of M. It is 0 if all weights are 0."""
    return weights_M.mean().square() / weights_M.square().mean().clamp(min=1e-38)
