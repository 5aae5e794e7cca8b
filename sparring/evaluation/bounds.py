"""Bounds of a mean in the presence of lost episodes: the mean with all of them wrong, and with all of them right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Self


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and largest possible mean, given the lost episodes. Bounds are not an interval: they do not account
    for chance."""

    worst: float
    best: float

    @classmethod
    def of(cls, totals: Mapping[str, float], samples: Mapping[str, int], lost: Mapping[str, int]) -> Self:
        """Compute the bounds of the mean over tasks of each task's mean.

        `totals` and `samples` are the sums and numbers of the remaining episodes by task; `lost` contains the numbers
        of lost episodes. A task may appear only in `lost`, if none of its episodes remain.
        """
        tasks = {**samples, **lost}
        worst, best = (
            fmean(
                (totals.get(task, 0.0) + value * lost.get(task, 0)) / (samples.get(task, 0) + lost.get(task, 0))
                for task in tasks
            )
            for value in (0.0, 1.0)
        )
        return cls(worst, best)

    def __str__(self) -> str:
        return f"{self.worst:.2f} to {self.best:.2f}"
