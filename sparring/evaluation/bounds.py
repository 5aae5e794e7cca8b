"""Bounds of a mean when episodes were lost: the mean if all of them had been incorrect, and if all of them had been
correct."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Self


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and largest possible mean, given the lost episodes. They are not a confidence interval,
    because they do not account for chance."""

    worst: float
    best: float

    @classmethod
    def of(cls, totals: Mapping[str, float], samples: Mapping[str, int], lost: Mapping[str, int]) -> Self:
        """Compute the bounds of the average, over tasks, of each task's mean.

        For each task, `totals` contains the sum over the remaining episodes, `samples` the number of remaining
        episodes, and `lost` the number of lost episodes. A task with no remaining episodes may appear in `lost` alone.
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
