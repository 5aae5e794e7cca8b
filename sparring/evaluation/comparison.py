"""The difference between two evaluations, task by task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Self

from sparring.evaluation.bounds import Bounds
from sparring.evaluation.evaluation import Evaluation, interval_json
from sparring.evaluation.statistics import Interval, paired_difference, paired_p_value, tasks_needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The paired difference between the success rates of two evaluations, on the tasks that both have."""

    before: str
    after: str
    """The labels of the two evaluations."""
    difference: Interval
    """The difference of the tasks' success rates, after - before."""
    p_value: float
    """The p-value of the exact two-sided randomization test."""
    fixed: tuple[str, ...]
    """The ids of the tasks whose success rate rose."""
    broken: tuple[str, ...]
    unchanged: tuple[str, ...]
    tasks_needed: int | None
    """The number of tasks that would show such a difference in four of five cases. None if there is no difference."""
    bounds: Bounds | None = None
    """The bounds of the difference: lost episodes count against `after`, or for it. None if no episode was lost."""
    worst_p_value: float = 0.0
    """The p-value if every lost episode counts against the difference. 0 if no episode was lost."""
    late_bounds: Bounds | None = None
    """The bounds of the difference if episodes that did not finish in time count as lost. None if all finished in
    time."""
    late_p_value: float = 0.0
    """The p-value if every lost episode, and every one that did not finish in time, counts against the difference. 0 if
    all finished in time."""

    @property
    def num_tasks(self) -> int:
        """The number of tasks that are compared."""
        return len(self.fixed) + len(self.broken) + len(self.unchanged)

    @property
    def is_sign_open(self) -> bool:
        """Whether the lost episodes could reverse the difference, or create a difference if there is none."""
        return self._is_open(self.bounds)

    @property
    def is_late_sign_open(self) -> bool:
        """Whether lost episodes, and those that did not finish in time, could reverse the difference, or create a
        difference if there is none."""
        return self._is_open(self.late_bounds)

    def _is_open(self, bounds: Bounds | None) -> bool:
        if bounds is None:
            return False
        mean = self.difference.mean
        return (mean >= 0 and bounds.worst < 0) or (mean <= 0 and bounds.best > 0)

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as the JSON data that `from_json` reads."""
        return {
            "before": self.before,
            "after": self.after,
            "difference": interval_json(self.difference),
            "p_value": self.p_value,
            "tasks_needed": self.tasks_needed,
            "fixed": list(self.fixed),
            "broken": list(self.broken),
            "unchanged": list(self.unchanged),
            "bounds": None if self.bounds is None else asdict(self.bounds),
            "is_sign_open": self.is_sign_open,
            "worst_p_value": self.worst_p_value,
            "late_bounds": None if self.late_bounds is None else asdict(self.late_bounds),
            "late_p_value": self.late_p_value,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read the data that `as_json` wrote. Raises LookupError or TypeError for anything else."""
        return cls(
            before=row["before"],
            after=row["after"],
            difference=Interval(**row["difference"]),
            p_value=row["p_value"],
            fixed=tuple(row["fixed"]),
            broken=tuple(row["broken"]),
            unchanged=tuple(row["unchanged"]),
            tasks_needed=row["tasks_needed"],
            bounds=None if row.get("bounds") is None else Bounds(**row["bounds"]),
            worst_p_value=row.get("worst_p_value", 0.0),
            late_bounds=None if row.get("late_bounds") is None else Bounds(**row["late_bounds"]),
            late_p_value=row.get("late_p_value", 0.0),
        )


def compare(before: Evaluation, after: Evaluation) -> Comparison:
    """Compare two evaluations, paired by task. Tasks that appear in only one of them are left out. Raises ValueError if
    they have no task in common."""
    first = dict(zip(before.task_ids, before.rates, strict=True))
    second = dict(zip(after.task_ids, after.rates, strict=True))
    shared = [task_id for task_id in before.task_ids if task_id in second]
    if not shared:
        raise ValueError(f"{before.label!r} and {after.label!r} have no task in common, so they cannot be compared")
    old, new = [first[i] for i in shared], [second[i] for i in shared]
    old_rates, new_rates = [float(rate) for rate in old], [float(rate) for rate in new]
    bounds, is_rise = _bounds(before, after), sum(new) >= sum(old)
    late = [_without_late(one) for one in (before, after)] if before.timed_out or after.timed_out else []
    late_bounds = _bounds(*late) if late else None
    return Comparison(
        before=before.label,
        after=after.label,
        difference=paired_difference(old_rates, new_rates),
        p_value=paired_p_value(old, new),
        fixed=tuple(i for i in shared if second[i] > first[i]),
        broken=tuple(i for i in shared if second[i] < first[i]),
        unchanged=tuple(i for i in shared if second[i] == first[i]),
        tasks_needed=tasks_needed(old_rates, new_rates),
        bounds=bounds,
        worst_p_value=0.0 if bounds is None else _worst_p_value(before, after, is_rise=is_rise),
        late_bounds=late_bounds,
        late_p_value=0.0 if late_bounds is None else _worst_p_value(*late, is_rise=is_rise),
    )


def _without_late(one: Evaluation) -> Evaluation:
    """Return the evaluation with the episodes that did not finish in time counted as lost."""
    late = one.timed_out
    return replace(
        one,
        samples=tuple(num - late.get(task, 0) for task, num in zip(one.task_ids, one.samples, strict=True)),
        lost={task: one.lost.get(task, 0) + late.get(task, 0) for task in {**one.lost, **late}},
    )


def _bounds(before: Evaluation, after: Evaluation) -> Bounds | None:
    """Return the bounds of the difference over the tasks that both evaluations planned to run. These include tasks
    whose episodes were all lost."""
    shared = {*before.task_ids, *before.lost} & {*after.task_ids, *after.lost}
    if shared.isdisjoint({*before.lost, *after.lost}):
        return None
    old, new = _bounds_on(before, shared), _bounds_on(after, shared)
    return Bounds(worst=new.worst - old.best, best=new.best - old.worst)


def _worst_p_value(before: Evaluation, after: Evaluation, *, is_rise: bool) -> float:
    """Return the p-value over the tasks that both evaluations planned to run, with every lost episode counted against
    the difference."""
    tasks = sorted({*before.task_ids, *before.lost} & {*after.task_ids, *after.lost})
    old, new = _rates_with_lost(before, is_right=is_rise), _rates_with_lost(after, is_right=not is_rise)
    return paired_p_value([old[task] for task in tasks], [new[task] for task in tasks])


def _rates_with_lost(one: Evaluation, *, is_right: bool) -> dict[str, Fraction]:
    """Return the success rates, keyed by task, with the lost episodes counted as correct or as incorrect."""
    played = {task: (c, n) for task, c, n in zip(one.task_ids, one.successes, one.samples, strict=True)}
    rates = {}
    for task in {*played, *one.lost}:
        num_right, num = played.get(task, (0, 0))
        num_lost = one.lost.get(task, 0)
        rates[task] = Fraction(num_right + is_right * num_lost, num + num_lost)
    return rates


def _bounds_on(one: Evaluation, tasks: set[str]) -> Bounds:
    played = [(i, c, n) for i, c, n in zip(one.task_ids, one.successes, one.samples, strict=True) if i in tasks]
    lost = {task: count for task, count in one.lost.items() if task in tasks}
    return Bounds.of({i: float(c) for i, c, _ in played}, {i: n for i, _, n in played}, lost)
