"""What differs between two evaluations, task by task."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sparring.evaluation.evaluation import Evaluation, interval_json
from sparring.evaluation.statistics import Interval, paired_difference, paired_p_value, tasks_needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The paired difference in success of two evaluations on the tasks that both have."""

    before: str
    after: str
    """Labels of the evaluations."""
    difference: Interval
    """Of the tasks' success rates, after - before."""
    p_value: float
    """Of the exact two-sided randomization test."""
    fixed: tuple[str, ...]
    """Ids of the tasks whose success rate rose."""
    broken: tuple[str, ...]
    unchanged: tuple[str, ...]
    tasks_needed: int | None
    """How many tasks would show such a difference four times in five; None where there is none."""

    def as_json(self) -> dict[str, Any]:
        return {
            "before": self.before, "after": self.after, "difference": interval_json(self.difference),
            "p_value": self.p_value, "tasks_needed": self.tasks_needed,
            "fixed": list(self.fixed), "broken": list(self.broken), "unchanged": list(self.unchanged),
        }  # fmt: skip

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """What `as_json` wrote. Raises LookupError or TypeError for anything else."""
        ids = {key: tuple(row[key]) for key in ("fixed", "broken", "unchanged")}
        plain = {key: row[key] for key in ("before", "after", "p_value", "tasks_needed")}
        return cls(**plain, **ids, difference=Interval(**row["difference"]))


def compare(before: Evaluation, after: Evaluation) -> Comparison:
    """Paired by task; tasks that only one of them has are left out. Raises ValueError when they share none."""
    first = dict(zip(before.task_ids, before.rates, strict=True))
    second = dict(zip(after.task_ids, after.rates, strict=True))
    shared = [task_id for task_id in before.task_ids if task_id in second]
    if not shared:
        raise ValueError(f"{before.label!r} and {after.label!r} have no task in common, so they cannot be compared")
    old, new = [first[i] for i in shared], [second[i] for i in shared]
    old_rates, new_rates = [float(rate) for rate in old], [float(rate) for rate in new]
    return Comparison(
        before=before.label,
        after=after.label,
        difference=paired_difference(old_rates, new_rates, rng=random.Random(0)),
        p_value=paired_p_value(old, new),
        fixed=tuple(i for i in shared if second[i] > first[i]),
        broken=tuple(i for i in shared if second[i] < first[i]),
        unchanged=tuple(i for i in shared if second[i] == first[i]),
        tasks_needed=tasks_needed(old_rates, new_rates),
    )
