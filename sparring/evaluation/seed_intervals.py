"""Intervals over seeds, intervals over seeds and tasks, and the detection of an outlying seed. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, cos, floor, inf, pi, sin, sqrt
from statistics import NormalDist, fmean, median, variance

from sparring.evaluation.statistics import Interval, mean_interval

MOST_DEGREES = 1000
"""The number of degrees of freedom above which Student's t is treated as the normal distribution."""
LEAST_SEEDS = 3
"""The smallest number of seeds for an outlier. Of two seeds that differ, either may be the unusual one."""
LEAST_DISTANCE = 0.1
"""The smallest distance of an outlier's mean from the nearest other seed, as a share."""
TIMES_THE_OTHERS = 3.0
"""The smallest ratio of two distances: the distance of an outlier from the nearest other seed, and the mean distance of
neighbors among the others."""
CHANCE = 0.05
"""The probability that the tasks alone make one of several equal seeds look like an outlier."""


@cache
def student_quantile(degrees: int, level: float = 0.95) -> float:
    """Return the two-sided quantile of Student's t distribution. For one degree of freedom and level 0.95, it is
    12.706."""
    if degrees > MOST_DEGREES:
        return NormalDist().inv_cdf((1 + level) / 2)
    low, high = 0.0, 1.0
    while _within(high, degrees) < level:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, degrees) < level else (low, middle)
    return middle


def _within(t: float, degrees: int) -> float:
    """Return the probability that a t-distributed variable is between -t and t (Abramowitz and Stegun, 26.7.3 and
    26.7.4)."""
    angle = atan(t / sqrt(degrees))
    is_odd = degrees % 2 == 1
    term = total = cos(angle) if is_odd else 1.0
    for power in range(3 if is_odd else 2, degrees - 1, 2):
        term *= cos(angle) ** 2 * (power - 1) / power
        total += term
    if not is_odd:
        return sin(angle) * total
    return 2 / pi * (angle + (sin(angle) * total if degrees > 1 else 0.0))


def interval_over_seeds(values: Sequence[float], *, least: float = 0.0, most: float = 1.0) -> Interval | None:
    """Return Student's t interval for the mean of `values`, which contains one value per seed. It is the range to
    expect for other seeds on the same tasks.

    `least` and `most` bound the possible values. Equal values give an interval of width 0. Returns None for a single
    seed.
    """
    if len(values) < 2:
        return None
    return _around(fmean(values), variance(values) / len(values), len(values) - 1, least, most)


def interval_over_seeds_and_tasks(
    seeds: Sequence[Mapping[str, float]], *, least: float = 0.0, most: float = 1.0
) -> Interval | None:
    """Return the confidence interval of the mean, as it applies to other seeds on other tasks. `seeds` contains one
    mapping from task ids to values for each seed.

    If the seeds have at least half of their tasks in common, seeds and tasks are crossed. The variance of the mean is
    (MS_s + max(MS_t - MS_st, 0)) / (S T), from the mean squares over seeds, tasks and their interaction. It has (MS_s +
    max(MS_t - MS_st, 0))^2 / (MS_s^2 / (S - 1)) degrees of freedom (Hillis, "A comparison of denominator degrees of
    freedom methods for multiple observer ROC analysis", 2007). If each seed has its own tasks, its mean varies with
    both the seed and the tasks, so Student's interval over seeds covers both. The result is never narrower than that
    interval. It is also never narrower than the interval over tasks of the mean over seeds, which has a positive width
    even if all values are equal. Returns None for a single seed.
    """
    if len(seeds) < 2:
        return None
    mean = fmean(fmean(one.values()) for one in seeds)
    shared = shared_tasks(seeds)
    over_seeds = interval_over_seeds([fmean(one.values()) for one in seeds], least=least, most=most)
    assert over_seeds is not None
    found = [over_seeds]
    if shared:
        found.append(_around(mean, *_crossed([[one[task] for task in shared] for one in seeds]), least, most))
    by_task = [fmean(one[task] for one in seeds) for task in shared] or [
        value for one in seeds for value in one.values()
    ]
    # Values are rescaled to shares of the range from least to most, for which the interval over tasks is defined.
    unit = mean_interval([(value - least) / (most - least) for value in by_task])
    shift = mean - fmean(by_task)
    found.append(Interval(mean, *(least + (most - least) * end + shift for end in (unit.low, unit.high))))
    return Interval(mean, max(least, min(one.low for one in found)), min(most, max(one.high for one in found)))


def shared_tasks(seeds: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the sorted tasks that all seeds have in common. The result is empty if there is only one such task, or if
    they are fewer than half of some seed's tasks."""
    shared = set.intersection(*(set(one) for one in seeds))
    is_crossed = len(shared) > 1 and all(2 * len(shared) >= len(one) for one in seeds)
    return sorted(shared) if is_crossed else []


def _crossed(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the variance of the mean and its degrees of freedom. Rows are seeds; columns are tasks."""
    num_seeds, num_tasks = len(rows), len(rows[0])
    seeds, tasks = [fmean(row) for row in rows], [fmean(column) for column in zip(*rows, strict=True)]
    mean = fmean(seeds)
    between_seeds, between_tasks = num_tasks * variance(seeds), num_seeds * variance(tasks)
    rest = sum(
        (value - seed - task + mean) ** 2
        for row, seed in zip(rows, seeds, strict=True)
        for value, task in zip(row, tasks, strict=True)
    ) / ((num_seeds - 1) * (num_tasks - 1))
    both = between_seeds + max(between_tasks - rest, 0.0)
    ratio = both / between_seeds if between_seeds > 0 else inf
    degrees = ratio * ratio * (num_seeds - 1)  # not (both**2 / between_seeds**2): the square of a tiny variance is 0
    return both / (num_seeds * num_tasks), degrees


def _around(mean: float, variance: float, degrees: float, least: float, most: float) -> Interval:
    half = student_quantile(floor(min(degrees, MOST_DEGREES + 1))) * sqrt(variance)
    return Interval(mean, max(least, mean - half), min(most, mean + half))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A seed whose result differs clearly from the results of the others."""

    seed: int
    value: float
    others: tuple[float, ...]
    """The means of the other seeds, in ascending order."""

    @property
    def sentence(self) -> str:
        """The finding as a sentence."""
        low, high = f"{self.others[0]:.2f}", f"{self.others[-1]:.2f}"
        others = low if low == high else f"{low} to {high}"
        return f"Seed {self.seed} is an outlier: it has {self.value:.2f}, and the others have {others}"


def outlier_of(seeds: Mapping[int, Mapping[str, float]]) -> Outlier | None:
    """Return the seed whose mean is farthest from the median of the means if that seed is an outlier, otherwise None.

    `seeds` maps each seed to a mapping from task ids to success rates. With at least 3 seeds, a seed is an outlier if
    three conditions hold. Its mean is at least 0.1 from the nearest other mean. This distance is at least 3 times the
    mean distance between neighboring means of the other seeds. The tasks do not explain the distance: the interval of
    the difference from the mean of the others (paired by task if all have the same tasks) excludes 0. Its level is 95 %
    for all seeds together (Bonferroni).
    """
    if len(seeds) < LEAST_SEEDS:
        return None
    means = {seed: fmean(tasks.values()) for seed, tasks in seeds.items()}
    middle = median(means.values())
    furthest = max(means, key=lambda seed: abs(means[seed] - middle))
    others = sorted(mean for seed, mean in means.items() if seed != furthest)
    distance = min(abs(means[furthest] - other) for other in others)
    # Rounded, so that a distance of exactly the limit counts.
    apart = (others[-1] - others[0]) / (len(others) - 1)
    if round(distance - max(LEAST_DISTANCE, TIMES_THE_OTHERS * apart), 9) < 0:
        return None
    is_by_chance = _is_by_chance(seeds[furthest], [tasks for seed, tasks in seeds.items() if seed != furthest])
    return None if is_by_chance else Outlier(seed=furthest, value=means[furthest], others=tuple(others))


def _is_by_chance(one: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> bool:
    """Return whether the tasks alone explain the difference between one seed and the mean of the others."""
    level = 1 - CHANCE / (len(others) + 1)
    if shared := shared_tasks([one, *others]):
        half = [(1 + one[task] - fmean(other[task] for other in others)) / 2 for task in shared]
        difference = mean_interval(half, level=level)
        return difference.low <= 0.5 <= difference.high
    mine = mean_interval(list(one.values()), level=level)
    theirs = mean_interval([value for other in others for value in other.values()], level=level)
    return mine.low <= theirs.high and theirs.low <= mine.high
