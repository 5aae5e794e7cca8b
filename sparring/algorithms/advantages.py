"""Advantages: how much better each trajectory of a group did than its siblings. Pure functions on plain numbers.

Each takes the rewards of one group, one number a trajectory however many sequences it has, and returns one advantage a
trajectory. Infrastructure failures never get here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev

EPSILON = 1e-6
"""Keeps the division defined when the rewards of a group are nearly equal."""


def group_based(rewards: Sequence[float], *, normalize: bool = True, eps: float = EPSILON) -> list[float]:
    """GRPO: (R - mean) / (std + eps) with the unbiased standard deviation (arXiv:2402.03300, section 4.1.2).

    Without `normalize` it is R - mean (Dr. GRPO, arXiv:2503.20783). Equal rewards, and groups of one, give zeros.
    """
    if len(rewards) < 2 or max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = fmean(rewards)
    scale = 1.0 / (stdev(rewards) + eps) if normalize else 1.0
    return [(reward - mean) * scale for reward in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """Leave-one-out: R_i minus the mean of the others, n / (n - 1) * (R_i - mean) (arXiv:2402.14740, equation 8).

    Equal rewards give zeros, and so does a group of one, which has no others.
    """
    count, total = len(rewards), sum(rewards)
    if count < 2 or max(rewards) == min(rewards):
        return [0.0] * count
    return [reward - (total - reward) / (count - 1) for reward in rewards]


ADVANTAGES: dict[str, Callable[..., list[float]]] = {"group_based": group_based, "rloo": rloo}
