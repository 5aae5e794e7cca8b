"""Between which numbers a mean lies if the lost episodes count: as wrong, every one of them, or as right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Self


@dataclass(frozen=True, slots=True)
class Bounds:
    """Not an interval: it says nothing of chance, only of what was lost."""

    worst: float
    best: float

    @classmethod
    def of(cls, totals: Mapping[str, float], samples: Mapping[str, int], lost: Mapping[str, int]) -> Self:
        """Of a mean over tasks of a task's mean. `totals` and `samples` are sums and numbers of the episodes that are left, by
        task; a task in `lost` alone has none."""
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
