"""Tests whether a series with one number per step rises, falls or stays the same, beyond its noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import fmean

from sparring.detectors.evidence import Estimate
from sparring.diagnosis.observed import Observed

SURE = 3.0
LIKELY = 2.0
"""The numbers of standard errors above which a change is certain, and above which it is likely."""
JUDGE_AFTER = 25
"""The number of steps after which the effect of a change is visible. For a noisy curve, it is up to twice as many."""
FLAT, EQUIVALENT = 0.12, 1.645
"""A curve is flat if its change is below this share of the range of rewards, by at least this number of standard errors
(two one-sided tests at 5 %)."""
HEALTHY_SIGNAL = 0.3
"""The share of groups with signal below which a stall has a simpler explanation than capacity or the size of the
updates."""
STALL_STEPS = 10
"""The smallest number of steps of a curve whose course is reported."""


def difference(before: Sequence[float], now: Sequence[float]) -> Estimate:
    """Return the mean of `now` minus the mean of `before`. Both have one number per step, for at least two steps.

    The noise of a step is estimated from the differences between neighbors (von Neumann 1941), so that a trend within a
    part does not count as noise.
    """
    squares = [_noise(part) / len(part) for part in (before, now)]
    return Estimate(fmean(now) - fmean(before), math.sqrt(sum(squares)), len(before) + len(now) - 2)


def _noise(values: Sequence[float]) -> float:
    """Return the variance of a step around the course, which is half of the mean squared difference between
    neighbors."""
    return fmean((after - before) ** 2 for before, after in itertools.pairwise(values)) / 2


def thirds(values: Sequence[float]) -> Estimate | None:
    """Return the change from the first third of the steps to the last third, or None for fewer than six steps."""
    count = len(values) // 3
    return difference(values[:count], values[-count:]) if count >= 2 else None


def stands_still(values: Sequence[float], span: float) -> bool:
    """Return True if the second half differs from the first by less than the share FLAT of `span`, including noise, and
    no trend is certain."""
    middle = len(values) // 2
    if middle < STALL_STEPS // 2:
        return False
    change = difference(values[:middle], values[middle:])
    return abs(change.value) + EQUIVALENT * change.error < FLAT * span + 1e-9


def reward_span(observed: Observed) -> float:
    """Return the spread of the episodes' rewards over all steps. This is the unit in which a rise is measured."""
    highest, lowest = observed.series("rollout/reward/max"), observed.series("rollout/reward/min")
    span = max(highest) - min(lowest) if highest and lowest else 0.0
    # If all episodes earn the same, the unit is the distance from that reward to the threshold.
    return span if span > 0 else max(1e-9, observed.history.success_threshold)


def is_flat(observed: Observed, last: int | None = None) -> bool:
    """Return whether the training reward stays the same, over all steps or over the `last` steps.

    The reward stays the same if its course is flat. The reward also stays the same if no step changed the policy,
    because then it varies only with the tasks.
    """
    values, idle = (observed.series(name) for name in ("rollout/reward/mean", "training/steps_without_signal"))
    if last is not None:
        values, idle = values[-last:], idle[-last:]
    if len(values) < STALL_STEPS:
        return False
    return stands_still(values, reward_span(observed)) or (len(idle) == len(values) and all(idle))
