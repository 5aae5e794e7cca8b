"""The final state that a task requests. It is built from the task's fields in several ways until one result gets full
marks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from sparring.agents.scripted import as_trajectory
from sparring.checks.evidence.answer_forms import canonical
from sparring.checks.evidence.grading_inputs import is_paid
from sparring.checks.evidence.subject import Subject
from sparring.environments import answer
from sparring.types import Json, Task

MOST_WAYS = 300
"""The maximum number of ways to build the state from fields that are tried in one task."""

_Named: TypeAlias = tuple[str, Json]


@dataclass(frozen=True, slots=True)
class WantedState:
    """The final state that gets full marks, without the parts that the scorer ignores."""

    state: Json
    free: frozenset[str]
    """Keys of the final state whose values may be anything."""

    def graded(self, state: Json) -> Json:
        """Return the part of a state that the scorer reads."""
        if not isinstance(state, Mapping) or not self.free:
            return state
        return {key: value for key, value in state.items() if key not in self.free}


async def find_wanted_state(subject: Subject, task: Task, idle: Json, known: list[str]) -> WantedState | None:
    """Return the final state that gets full marks. It is a field of the task, the state after no calls with some values
    replaced by fields, or a value built from fields. Return None if there is no such state, or if the state after no
    calls gets full marks. The ways in `known`, which worked in other tasks, are tried first. A new way is added to
    `known`."""

    async def pays(state: Json) -> bool:
        return await is_paid(subject, replace(as_trajectory(task, answer("Done.")), final_state=copy.deepcopy(state)))

    if await pays(idle):
        return None
    ways = list(itertools.islice(_list_wanted(idle, task.fields), MOST_WAYS))
    for way, state in sorted(ways, key=lambda one: one[0] not in known):
        if canonical(state) != canonical(idle) and await pays(state):
            if way not in known:
                known.append(way)
            others = list(_change_others(idle, state))
            free = frozenset([key for key, other in others if await pays(other)])
            wanted = WantedState(state, free)
            return replace(wanted, state=wanted.graded(state))
    return None


def _change_others(idle: Json, state: Json) -> Iterator[_Named]:
    """Yield each unchanged key, with a copy of the state that has a different value for this key."""
    if isinstance(idle, Mapping) and isinstance(state, Mapping):
        for key, value in state.items():
            if key in idle and canonical(value) == canonical(idle[key]) and (other := _change_value(value)) is not None:
                yield key, {**state, key: other}


def _change_value(value: Json) -> Json:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else None


def _list_wanted(idle: Json, fields: Mapping[str, Json]) -> Iterator[_Named]:
    """Yield states that the task may request, the most likely first, each with a description that has the same meaning
    in other tasks."""
    made = list(_build_values(fields))
    for name, value in (*fields.items(), *made):
        if isinstance(value, Mapping):
            yield name, dict(value)
    if not isinstance(idle, Mapping):
        yield from ((name, value) for name, value in (*fields.items(), *made) if type(value) is type(idle))
        return
    same = {key: fields[key] for key in idle.keys() & fields.keys()}
    if len(same) > 1:
        yield "all of the same name", {**idle, **same}
    fitting = {key: [one for one in (*fields.items(), *made) if _may_become(idle[key], one[1])] for key in idle}
    for key, values in fitting.items():
        yield from ((f"{key}: {name}", {**idle, key: value}) for name, value in values)
    for (one, values), (two, others) in itertools.combinations(fitting.items(), 2):
        for (name, value), (other, second) in itertools.product(values[:6], others[:6]):
            yield f"{one}: {name}, {two}: {other}", {**idle, one: value, two: second}


def _may_become(before: Json, after: Json) -> bool:
    """Return True if a value may replace another one."""
    return before is None or type(after) is type(before)


def _build_values(fields: Mapping[str, Json]) -> Iterator[_Named]:
    """Yield values built from one or two fields: a column of a field's rows, an object with one value as the key and
    another as the value, or a list of one value."""
    for name, value in fields.items():
        if _are_rows(value):
            keys = [key for key, one in value[0].items() if _is_scalar(one)]
            columns = {key: [row.get(key) for row in value] for key in keys}
            for key, column in columns.items():
                yield f"{key} of {name}", column
                yield f"sorted {key} of {name}", sorted(column, key=str)
            for one, other in itertools.permutations(keys, 2):
                yield f"{other} of {name} by {one}", dict(zip(map(str, columns[one]), columns[other], strict=True))
        elif isinstance(value, Mapping):
            yield from ((f"{key} of {name}", one) for key, one in value.items() if _is_scalar(one))
    scalars = [(name, value) for name, value in fields.items() if _is_scalar(value)]
    for (name, value), (other, second) in itertools.permutations(scalars, 2):
        if isinstance(value, str):
            yield f"{other} by {name}", {value: second}
    yield from ((f"{name} alone", [value]) for name, value in scalars)


def _are_rows(value: Json) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(one, Mapping) and one for one in value)


def _is_scalar(value: Json) -> bool:
    return isinstance(value, str | int | float)
