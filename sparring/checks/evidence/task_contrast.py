"""The feature of the tasks' fields that separates the tasks with a problem from the other tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparring.checks.evidence.field_paths import list_paths
from sparring.types import Json, Task

_LONGEST = 40
"""The maximum length of a value that is quoted."""


def find_separating_feature(tasks: Sequence[Task], others: Sequence[Task]) -> str | None:
    """Return a feature that all of these tasks and none of the others have, or None if there is no such feature."""
    if not tasks or not others:
        return None
    common = set.intersection(*(set(_list_features(one)) for one in tasks))
    common -= set.union(*(set(_list_features(one)) for one in others))
    return min(common, key=lambda one: (len(one), one), default=None)


def _list_features(task: Task) -> Iterator[str]:
    for path, value in list_paths(task).items():
        yield from (f"`{path}` {what}" for what in _of_value(value))


def _of_value(value: Json) -> Iterator[str]:
    if value is None or isinstance(value, bool):
        yield f"is {value}"
    elif isinstance(value, list | tuple):
        yield f"has {len(value)} elements"
    elif isinstance(value, int | float):
        yield "is a whole number" if value == int(value) else "is not a whole number"
        if value <= 0:
            yield "is 0" if value == 0 else "is below 0"
    elif isinstance(value, str):
        if len(value) <= _LONGEST:
            yield f"is {value!r}"
        yield from (f"has {name}" for name, letters in _LETTERS.items() if any(one in letters for one in value))
        if not value.isascii():
            yield "has letters outside ASCII"


_LETTERS = {
    "a comma": ",",
    "a blank": " ",
    "a hyphen": "-",
    "an apostrophe": "'’",
    "a point": ".",
    "brackets": "()[]{}",
}
