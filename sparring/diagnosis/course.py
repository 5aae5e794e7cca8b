"""The course of a series of one number a step: whether it rises, falls or stays the same, beyond its noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import fmean

from sparring.detectors.evidence import Estimate
from sparring.diagnosis.observed import Observed

SURE = 3.0
LIKELY = 2.0
"""Standard errors."""
JUDGE_AFTER = 25
"""Steps after which the effect of a change is visible; up to twice as many where the curve is noisy."""
FLAT, EQUIVALENT = 0.12, 1.645
"""Share of the range of rewards within which a curve stands still, and the standard errors within which it must lie there for
sure (two one-sided tests at 5 %)."""
HEALTHY_SIGNAL = 0.3
"""Share of groups with signal below which a stall has a simpler explanation than capacity or the size of the updates."""
STALL_STEPS = 10
"""Fewest steps of a curve whose course is reported."""


def difference(before: Sequence[float], now: Sequence[float]) -> Estimate:
    """Return the mean of `now` minus the mean of `before`, one number a step each, at least two steps.

    The noise of a step is estimated from differences of neighbors (von Neumann 1941), so that a trend within a part does not
    count as noise.
    """
    squares = [_noise(part) / len(part) for part in (before, now)]
    return Estimate(fmean(now) - fmean(before), math.sqrt(sum(squares)), len(before) + len(now) - 2)


def _noise(values: Sequence[float]) -> float:
    """Return the variance of a step around the course: half of the mean squared difference of neighbors."""
    return fmean((after - before) ** 2 for before, after in itertools.pairwise(values)) / 2


def thirds(values: Sequence[float]) -> Estimate | None:
    """From the first third to the last, the later half of what there is; None of fewer than six steps."""
    count = len(values) // 3
    return difference(values[:count], values[-count:]) if count >= 2 else None


def stands_still(values: Sequence[float], span: float) -> bool:
    """Whether the second half differs from the first by less than FLAT of `span`, noise included, and no trend is certain."""
    middle = len(values) // 2
    if middle < STALL_STEPS // 2:
        return False
    change = difference(values[:middle], values[middle:])
    return abs(change.value) + EQUIVALENT * change.error < FLAT * span + 1e-9


def reward_span(observed: Observed) -> float:
    """Return the spread of the episodes' rewards over all steps, the unit in which a rise is measured."""
    highest, lowest = observed.series("rollout/reward/max"), observed.series("rollout/reward/min")
    span = max(highest) - min(lowest) if highest and lowest else 0.0
    # Where all episodes earn the same, being right would be worth the threshold's distance.
    return span if span > 0 else max(1e-9, observed.history.success_threshold)


def is_flat(observed: Observed, last: int | None = None) -> bool:
    """Return whether the training reward stays the same, over all steps or the `last` ones.

    It does by its course, or because no step changed the policy, so that it varies only with the tasks.
    """
    values, idle = (observed.series(name) for name in ("rollout/reward/mean", "training/steps_without_signal"))
    if last is not None:
        values, idle = values[-last:], idle[-last:]
    if len(values) < STALL_STEPS:
        return False
    return stands_still(values, reward_span(observed)) or (len(idle) == len(values) and all(idle))
