"""Evaluation statistics: unbiased pass@k and pass^k, intervals over tasks, paired tests. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb, lcm
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
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Interval of the mean over tasks; `values` holds one number a task, of several samples their mean.

    Of right and wrong it is Wilson's interval (1927): no success in 20 tasks gives [0, 0.16]. Values beyond [0, 1] widen what a
    value may be to what was seen. Raises ValueError when empty.
    """
    if not values:
        raise ValueError("an interval of no tasks is not defined")
    return _score_interval(values, min(0.0, *values), max(1.0, *values), level)


def paired_difference(before: Sequence[float], after: Sequence[float], *, level: float = 0.95) -> Interval:
    """Interval of the mean difference after - before of rates in [0, 1], task by task.

    Of right and wrong it is Tango's interval ("Equivalence test and confidence interval for the difference in proportions for
    the paired-sample design", 1998): 20 tasks without a difference give [-0.16, 0.16]. Both hold one number for each of the
    same tasks in the same order; raises ValueError otherwise, and when empty.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if not differences:
        raise ValueError("an interval of no tasks is not defined")
    return _score_interval(differences, -1.0, 1.0, level)


def _score_interval(values: Sequence[float], least: float, most: float, level: float) -> Interval:
    """The means that a score test does not reject. `least` and `most` bound what a value may be.

    For each mean in question the distribution is the likeliest with that mean, over the values that were seen, `least` and
    `most`; its variance is what the test takes. So an interval stays within the bounds, has a width where all values are
    equal, and depends on nothing but `values`.
    """
    mean, z = fmean(values), _normal(level)
    low = _lower_end(Counter(values), mean, least, z)
    high = -_lower_end(Counter(-value for value in values), -mean, -most, z)
    return Interval(mean, low, high)


def _lower_end(counts: Mapping[float, int], mean: float, least: float, z: float) -> float:
    """By bisection. The likeliest distribution with mean m has p = share / (1 + t (value - m)), with t such that its mean is m,
    and the rest at `least` where no t does (Owen, "Empirical Likelihood", 2001, chapter 2). Its variance is
    (mean - m) / t, so the test's statistic is count * t * (mean - m), and m is inside where z^2 is not less."""
    count = sum(counts.values())
    outside, inside = least, mean
    while outside < (end := (outside + inside) / 2) < inside:
        tilt = z**2 / (count * (mean - end))
        is_inside = tilt * (end - least) >= 1 or (
            sum(times * (value - end) / (1 + tilt * (value - end)) for value, times in counts.items()) <= 0
        )
        outside, inside = (outside, end) if is_inside else (end, inside)
    return inside


_ROUNDING = 1e-12
"""Below this a mean of numbers up to 1 is rounding."""


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
