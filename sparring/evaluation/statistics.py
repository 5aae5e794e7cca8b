"""Evaluation statistics: unbiased pass@k and pass^k, bootstrap over tasks, paired differences. Pure functions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that at least one of k samples succeeds, 1 - C(n-c, k) / C(n, k) (arXiv:2107.03374, equation 1).

    Raises ValueError for k > n, where it is not defined.
    """
    _check_k(num_samples, k)
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def pass_power_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that all of k samples succeed, C(c, k) / C(n, k). Raises ValueError for k > n."""
    _check_k(num_samples, k)
    return comb(num_correct, k) / comb(num_samples, k)


def _check_k(num_samples: int, k: int) -> None:
    if not 1 <= k <= num_samples:
        raise ValueError(f"k = {k} with {num_samples} samples a task is not defined; play at least k episodes a task")


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its bootstrap interval."""

    mean: float
    low: float
    high: float


def bootstrap_mean(
    values: Sequence[float], *, rng: random.Random, level: float = 0.95, num_resamples: int = 2000
) -> Interval:
    """Percentile bootstrap of the mean over tasks: `values` holds one number a task. Raises ValueError when empty."""
    if not values:
        raise ValueError("an interval of no tasks is not defined")
    count = len(values)
    means = sorted(sum(rng.choices(values, k=count)) / count for _ in range(num_resamples))
    tail = (1 - level) / 2
    return Interval(sum(values) / count, means[int(tail * num_resamples)], means[int((1 - tail) * num_resamples) - 1])


def paired_difference(
    before: Sequence[float], after: Sequence[float], *, rng: random.Random, level: float = 0.95
) -> Interval:
    """Bootstrap interval of the mean difference after - before, task by task.

    Both hold one number for each of the same tasks in the same order; raises ValueError otherwise.
    """
    return bootstrap_mean([b - a for a, b in zip(before, after, strict=True)], rng=rng, level=level)
