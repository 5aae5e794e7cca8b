"""Off-policy corrections: the weight of a token that a different policy sampled. All functions are pure.

A correction takes log w [M], the log-ratio between the policy that should have sampled and the policy that did, and the
index of each token's trajectory [M]. It returns the weights [M] that replace w, without gradient. With two policies, w
is the ratio of the loss itself (policy / sampler). With three policies, w is (policy before the step / sampler), and
the ratio of the loss is (policy / policy before the step) (arXiv:2505.24298, section 5.2).

The keyword arguments are keys of `[algorithm]`. Products over the tokens of a trajectory are computed as sums of
logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparring.algorithms.losses import trajectory_means

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_LOG = 20.0
"""The largest log-ratio. Larger ratios count as exp(20)."""


def none(log_weights_M: Tensor, trajectory_M: Tensor) -> Tensor:
    """Return w unchanged."""
    return log_weights_M.exp()


def token_tis(log_weights_M: Tensor, trajectory_M: Tensor, *, correction_high: float = 2.0) -> Tensor:
    """Return min(w, high) for each token: truncated importance sampling (fengyao.notion.site/off-policy-rl)."""
    return log_weights_M.exp().clamp(max=correction_high)


def sequence_tis(log_weights_M: Tensor, trajectory_M: Tensor, *, correction_high: float = 2.0) -> Tensor:
    """Return min(prod w, high), one weight for all tokens of a trajectory. On long trajectories, the weight
    saturates."""
    return _products(log_weights_M, trajectory_M).clamp(max=correction_high)


def icepop(
    log_weights_M: Tensor, trajectory_M: Tensor, *, correction_low: float = 0.5, correction_high: float = 2.0
) -> Tensor:
    """Return w if low <= w <= high, otherwise 0. This leaves out tokens on which the policies disagree (IcePop)."""
    weights_M = log_weights_M.exp()
    return weights_M * ((weights_M >= correction_low) & (weights_M <= correction_high))


def sequence_mask(
    log_weights_M: Tensor, trajectory_M: Tensor, *, correction_low: float = 0.0, correction_high: float = 3.0
) -> Tensor:
    """Return w for trajectories with low <= prod w <= high, and 0 for all others."""
    products_M = _products(log_weights_M, trajectory_M)
    return log_weights_M.exp() * ((products_M >= correction_low) & (products_M <= correction_high))


def geometric_mask(
    log_weights_M: Tensor, trajectory_M: Tensor, *, correction_low: float = 0.99, correction_high: float = 1.01
) -> Tensor:
    """Return w for trajectories whose geometric mean of w is in [low, high], and 0 for all others
    (arXiv:2512.23075)."""
    means_M = trajectory_means(log_weights_M, trajectory_M)[trajectory_M].exp()
    return log_weights_M.exp() * ((means_M >= correction_low) & (means_M <= correction_high))


CORRECTIONS: dict[str, Callable[..., Tensor]] = {
    "none": none,
    "token_tis": token_tis,
    "sequence_tis": sequence_tis,
    "icepop": icepop,
    "sequence_mask": sequence_mask,
    "geometric_mask": geometric_mask,
}


def _products(log_weights_M: Tensor, trajectory_M: Tensor) -> Tensor:
    counts = trajectory_M.bincount()
    sums = trajectory_means(log_weights_M, trajectory_M) * counts
    return sums.exp()[trajectory_M]
