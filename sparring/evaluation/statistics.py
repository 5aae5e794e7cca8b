"""Statistics of evaluations: unbiased pass@k and pass^k, intervals over tasks, and paired tests. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb, lcm
from statistics import NormalDist, fmean

POWER = 0.8
"""The probability with which `tasks_needed` tasks show an existing difference."""


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the probability that at least one of k samples succeeds, 1 - C(n-c, k) / C(n, k) (arXiv:2107.03374,
    equation 1).

    Raises ValueError if k > n, because the result is then undefined.
    """
    _check_k(num_samples, k)
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def pass_power_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the probability that all of k samples succeed, C(c, k) / C(n, k). Raises ValueError if k > n."""
    _check_k(num_samples, k)
    return comb(num_correct, k) / comb(num_samples, k)


def _check_k(num_samples: int, k: int) -> None:
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"k = {k} with {num_samples} samples per task is not defined; run at least k episodes per task"
        )


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return the confidence interval of the mean over tasks. `values` contains one number per task, the mean of its
    samples.

    For values of 0 and 1, the result is Wilson's interval (1927): no success in 20 tasks gives [0, 0.16]. Values
    outside [0, 1] widen the assumed range to the observed one. Raises ValueError if there are no values.
    """
    if not values:
        raise ValueError("an interval over zero tasks is not defined")
    return _score_interval(values, min(0.0, *values), max(1.0, *values), level)


def paired_difference(before: Sequence[float], after: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return the confidence interval of the mean difference `after - before`, paired by task, of rates in [0, 1].

    For rates of 0 and 1, the result is Tango's interval ("Equivalence test and confidence interval for the difference
    in proportions for the paired-sample design", 1998): 20 tasks without a difference give [-0.16, 0.16]. Both
    sequences contain one number per task, for the same tasks in the same order. Raises ValueError if their lengths
    differ or are 0.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if not differences:
        raise ValueError("an interval over zero tasks is not defined")
    return _score_interval(differences, -1.0, 1.0, level)


def _score_interval(values: Sequence[float], least: float, most: float, level: float) -> Interval:
    """Return the interval of the means that a score test does not reject. `least` and `most` bound the possible values.

    For each candidate mean, the test uses the variance of the most likely distribution with that mean, over the
    observed values, `least` and `most`. An interval therefore stays within the bounds, has a positive width if all
    values are equal, and depends only on `values`.
    """
    mean, z = fmean(values), _normal(level)
    low = _lower_end(Counter(values), mean, least, z)
    high = -_lower_end(Counter(-value for value in values), -mean, -most, z)
    return Interval(mean, low, high)


def _lower_end(counts: Mapping[float, int], mean: float, least: float, z: float) -> float:
    """Find the lower end of the interval by bisection.

    The most likely distribution with mean m has p = share / (1 + t (value - m)), with t such that its mean is m. If no
    t achieves this, the remaining probability mass is at `least` (Owen, "Empirical Likelihood", 2001, chapter 2). Its
    variance is (mean - m) / t, so the test statistic is count * t * (mean - m), and m is inside the interval unless the
    statistic exceeds z^2.
    """
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
"""The mean of numbers up to 1 is treated as a rounding error if it is below this value."""


def paired_p_value(before: Sequence[Fraction], after: Sequence[Fraction]) -> float:
    """Return the probability that random signs give a sum of differences whose absolute value is at least as large as
    the observed one.

    This is the exact two-sided randomization test (Fisher 1935; Pitman 1937) of the hypothesis that the choice of
    policy makes no difference on any task. For rates of 0 and 1, it is the exact McNemar test. Both sequences contain
    one rate per task, for the same tasks. Raises ValueError if their lengths differ.
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


def paired_episodes_p_value(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> float:
    """Return the probability that episodes of the same tasks, exchanged at random between the policies, give a difference
    in mean success at least as large as the observed one.

    This is the exact two-sided permutation test within tasks. Unlike `paired_p_value`, it is about these tasks alone. Both
    sequences contain one (successes, episodes) per task, for the same tasks. Raises ValueError if their lengths differ.
    """
    pairs = list(zip(before, after, strict=True))
    unit = lcm(*(num for pair in pairs for _, num in pair))
    shares: dict[int, float] = {0: 1.0}
    for (old, num_old), (new, num_new) in pairs:
        total, following = old + new, dict[int, float]()
        for k in range(max(0, total - num_old), min(total, num_new) + 1):
            chance = comb(num_new, k) * comb(num_old, total - k) / comb(num_old + num_new, total)
            step = k * unit // num_new - (total - k) * unit // num_old
            for place, share in shares.items():
                following[place + step] = following.get(place + step, 0.0) + share * chance
        shares = following
    seen = abs(sum(new * unit // num_new - old * unit // num_old for (old, num_old), (new, num_new) in pairs))
    return min(1.0, sum(share for total, share in shares.items() if abs(total) >= seen))


def tasks_needed(before: Sequence[float], after: Sequence[float], *, level: float = 0.95) -> int | None:
    """Return how many tasks are needed to detect a difference of this size and spread with probability POWER, or None
    if the difference is 0.

    By the normal approximation, the number is ((z + z') s / d)^2, where d and s are the mean and the standard deviation
    of the paired differences.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    mean = fmean(differences) if differences else 0.0
    if abs(mean) <= _ROUNDING:
        return None
    z = _normal(level) + NormalDist().inv_cdf(POWER)
    return max(2, ceil(z**2 * _variance(differences) / mean**2))


def _variance(values: Sequence[float]) -> float:
    """Return the population variance: the sum of squared deviations from the mean, divided by the number of values (not
    by that number minus one)."""
    mean = fmean(values)
    return fmean((value - mean) ** 2 for value in values)


def _normal(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)
