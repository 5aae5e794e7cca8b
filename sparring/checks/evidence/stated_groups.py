"""Tools that group rows: the groups in a result are compared with all rows of the task's own data."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from sparring.checks.evidence.returned_rows import count_decimals, parse_number
from sparring.checks.evidence.survey import CallResult, Survey
from sparring.checks.evidence.task_rows import Row, find_tables
from sparring.types import Json

_LEFT_OUT = re.compile(r"\b(?:left out|leaves out|not counted|not included|exclud\w+|ignor\w+|skip\w*|omit\w*|only)\b")
_KINDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "number": len,
    "average": fmean,
    "minimum": min,
    "maximum": max,
}


LEFT_OUT = "its groups leave out rows of the task, such as those without a value"


def find_missing_groups(survey: Survey, one: CallResult, text: str) -> Iterator[dict[str, Json] | None]:
    """Yield evidence of the groups that a result leaves out, or None if the result leaves out none.

    A result groups the rows of the task's data by a column if the number that it states for each group matches the rows
    with that value in the column. Rows without a value also form a group.
    """
    stated = _parse_stated(one)
    if len(stated) < 2 or _LEFT_OUT.search(text):
        return
    for _, rows in find_tables(survey.task.fields):
        for column in dict.fromkeys(name for row in rows for name in row):
            for of, kind, groups in _group_rows(rows, column):
                known = {name: value for name, value in groups.items() if name in stated}
                others = stated.keys() - known.keys()
                if len(known) < 2 or len(others) > 1 or not all(_is_about(stated[name], known[name]) for name in known):
                    continue
                left_out = [name for name, value in groups.items() if name not in stated and value]
                if others:  # a name for the rows without a value
                    left_out = [name for name in left_out if name is not None]
                shown: dict[str, Json] = {
                    "call": str(one.call),
                    "groups": dict(stated),
                    "left_out": list(left_out),
                    "stated": f"{kind} of {of or 'rows'!r} by {column!r}",
                }
                yield shown if left_out else None
                return


def _parse_stated(one: CallResult) -> dict[str, float]:
    """Return the number that a result states for each group, or an empty mapping if the result has a different
    format."""
    value = one.value
    if isinstance(value, Mapping) and len(value) == 1 and isinstance(next(iter(value.values())), Mapping):
        value = next(iter(value.values()))
    if isinstance(value, Mapping):
        pairs = [(name, item) for name, item in value.items()]
    else:
        rows = next(iter(one.listings.values()), ()) if len(one.listings) == 1 else ()
        pairs = [
            tuple(sorted(row.values(), key=lambda cell: parse_number(cell) is not None))
            for row in rows
            if len(row) == 2
        ]
        if len(pairs) != len(rows):
            return {}
    numbers = {str(name): parse_number(number) for name, number in pairs}
    return {name: number[0] for name, number in numbers.items() if number is not None} if all(numbers.values()) else {}


def _group_rows(rows: Sequence[Row], column: str) -> Iterator[tuple[str, str, dict[str | None, float]]]:
    """Yield (column, kind of number, the number for each group) for everything that can be computed from the rows."""
    members: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        value = row.get(column)
        if value is not None and not isinstance(value, str):
            return
        members[value or None].append(row)
    if not 2 <= len(members) < len(rows):
        return
    yield "", "number", {name: len(own) for name, own in members.items()}
    for of in rows[0]:
        if all(isinstance(row.get(of), int | float) for row in rows):
            for kind, compute in _KINDS.items():
                if kind != "number":
                    yield of, kind, {name: compute([row[of] for row in own]) for name, own in members.items()}  # type: ignore[misc]


def _is_about(stated: float, computed: float) -> bool:
    return abs(stated - computed) <= 0.5 * 10.0 ** -count_decimals(stated) * (not float(stated).is_integer()) + 1e-6
