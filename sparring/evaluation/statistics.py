"""Evaluation statistics: unbiased pass@k and pass^k, bootstrap over tasks, paired tests. Pure functions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb, lcm, sqrt
from statistics import NormalDist, fmean

POWER = 0.8
"""The chance to see a difference that is there, in `tasks_needed`."""


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
    """Interval of the mean over tasks; `values` holds one number a task, of several samples their mean.

    Tasks are drawn anew, and each draw's distance from the mean is measured in the draw's own standard error; the
    `level` quantile q of that (the symmetric studentized bootstrap of Hall, "On symmetric bootstrap confidence
    intervals", 1988) says how many standard errors wide the interval is. Where all values are in [0, 1] the standard error
    is the one that the mean would have at each end, as in Wilson's interval (1927): variance m (1 - m) rho, where rho
    is what the variance of the values is of m (1 - m), 1 for right and wrong. So it stays in [0, 1], and no success in
    20 tasks gives [0, 0.16] and not [0, 0]. Raises ValueError when empty.
    """
    if not values:
        raise ValueError("an interval of no tasks is not defined")
    count, mean, variance = len(values), fmean(values), _variance(values)
    if min(values) < 0 or max(values) > 1:
        half = _critical(values, rng, level, num_resamples) * sqrt(variance / count)
        return Interval(mean, mean - half, mean + half)
    if mean in (0.0, 1.0):
        critical, rho = _normal(level), 1.0
    else:
        critical, rho = _critical(values, rng, level, num_resamples, is_share=True), variance / (mean * (1 - mean))
    extra = critical**2 * rho / count
    half = sqrt(extra * mean * (1 - mean) + extra**2 / 4)
    low, high = ((mean + extra / 2 + sign * half) / (1 + extra) for sign in (-1, 1))
    return Interval(mean, max(0.0, min(low, mean)), min(1.0, max(high, mean)))


def paired_difference(
    before: Sequence[float], after: Sequence[float], *, rng: random.Random, level: float = 0.95
) -> Interval:
    """Interval of the mean difference after - before of rates in [0, 1], task by task, by the symmetric studentized bootstrap.

    Where every task differs by as much, one task more that differed by that much either way is assumed for the width (by 1
    where none differs): 20 tasks without a difference give [-0.1, 0.1]. Both hold one number for each of the same tasks in
    the same order; raises ValueError otherwise, and when empty.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if not differences:
        raise ValueError("an interval of no tasks is not defined")
    count, mean, variance = len(differences), fmean(differences), _variance(differences)
    if variance <= _ROUNDING:
        half = _normal(level) * (abs(mean) if abs(mean) > _ROUNDING else 1.0) / count
    else:
        half = _critical(differences, rng, level, 2000) * sqrt(variance / count)
    return Interval(mean, max(-1.0, mean - half), min(1.0, mean + half))


_ROUNDING = 1e-12
"""Below this a variance of numbers up to 1 is rounding."""


def _critical(
    values: Sequence[float], rng: random.Random, level: float, num_resamples: int, *, is_share: bool = False
) -> float:
    """The `level` quantile of how many of its own standard errors a resample's mean lies from the mean of `values`."""
    count, mean, variance = len(values), fmean(values), _variance(values)
    if variance <= _ROUNDING:
        return _normal(level)
    distances = []
    for _ in range(num_resamples):
        drawn = rng.choices(values, k=count)
        its_mean = sum(drawn) / count
        its_variance = sum(value * value for value in drawn) / count - its_mean**2
        if is_share:
            # At the mean of `values`, where the draw says how much of m (1 - m) is varying.
            spread = its_mean * (1 - its_mean)
            its_variance = its_variance / spread * mean * (1 - mean) if spread > _ROUNDING else variance
        # Of few tasks that differ a draw may have none, and would lie infinitely many standard errors away.
        distances.append(abs(its_mean - mean) / sqrt(max(its_variance, variance / count) / count))
    distances.sort()
    return distances[ceil(level * num_resamples) - 1]


def paired_p_value(before: Sequence[Fraction], after: Sequence[Fraction]) -> float:
    """How often signs at random would make the sum of differences as large as it is: the exact two-sided randomization
    test (Fisher 1935; Pitman 1937), of the hypothesis that it makes no difference to a task which of the two played it.

    Of rates 0 and 1 it is McNemar's exact test. Both hold one rate for each of the same tasks; raises ValueError for
    different lengths.
    """
    differences = [b - a for a, b in zip(before, after, strict=True) if a != b]
    unit = lcm(*(difference.denominator for difference in differences))
    steps = [int(abs(difference) * unit) for difference in differences]
    shares: dict[int, float] = {0: 1.0}
    for step in steps:
        following: dict[int, float] = {}
        for total, share in shares.items():
            for signed in (total + step, total - step):
                following[signed] = following.get(signed, 0.0) + share / 2
        shares = following
    seen = abs(int(sum(differences) * unit))
    return min(1.0, sum(share for total, share in shares.items() if abs(total) >= seen))


def tasks_needed(before: Sequence[float], after: Sequence[float], *, level: float = 0.95) -> int | None:
    """How many tasks would show a difference of this size and spread, with a chance of POWER: ((z + z') s / d)^2 of the
    paired differences, by the normal approximation. None where there is no difference."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    mean = fmean(differences) if differences else 0.0
    if abs(mean) <= _ROUNDING:
        return None
    z = _normal(level) + NormalDist().inv_cdf(POWER)
    return max(2, ceil(z**2 * _variance(differences) / mean**2))


def _variance(values: Sequence[float]) -> float:
    """Around the mean, over all values (not one fewer): what a draw of them has."""
    mean = fmean(values)
    return fmean((value - mean) ** 2 for value in values)


def _normal(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)
