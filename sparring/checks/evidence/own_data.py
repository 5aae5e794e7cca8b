"""The data of an environment: the fields of the task, with JSON texts parsed, and the attributes and module globals
after `reset`."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping

from sparring.checks.evidence.subject import Subject
from sparring.environments.base import reset
from sparring.types import Json, Task

_MOST_LEVELS = 6
_LARGEST = 20_000
"""The maximum number of scalars under one name."""


async def collect_own_data(subject: Subject, task: Task) -> dict[str, Json]:
    """Return the fields of a task, keyed by name, together with the lists and objects of scalars in its environment's
    attributes and module. The result is cached."""
    known: dict[str, dict[str, Json]] = subject.shared.setdefault("own data", {})
    if task.id not in known:
        own = copy.deepcopy(task)
        async with subject.opened(own) as environment:
            await reset(environment, own)
            kept = {
                name: value for name, value in _list_attributes(environment).items() if isinstance(value, list | dict)
            }
            module = vars(sys.modules.get(type(environment).__module__, object()))
            named = {name: value for name, value in module.items() if isinstance(value, list | dict)}
            plain = {name: copy.deepcopy(value) for name, value in {**named, **kept}.items() if _is_plain(value)}
        known[task.id] = {**plain, **{name: unpack(value) for name, value in task.fields.items()}}
    return known[task.id]


def _list_attributes(environment: object) -> Mapping[str, object]:
    return {name: value for name, value in getattr(environment, "__dict__", {}).items() if not callable(value)}


def unpack(value: Json) -> Json:
    """Return the value with every string that is a JSON list or object replaced by its parsed content."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    if isinstance(value, Mapping):
        return {str(key): unpack(item) for key, item in value.items()}
    return [unpack(one) for one in value] if isinstance(value, list | tuple) else value


def find_texts(value: Json) -> Iterator[str]:
    """Yield all strings in a value, without keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from find_texts(item)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from find_texts(one)


def _is_plain(value: object) -> bool:
    """Return True if a value consists of lists, objects with texts or integers as keys, and scalars, and is not too
    large."""
    level, num = [value], 0
    for _ in range(_MOST_LEVELS):
        inside: list[object] = []
        for one in level:
            num += 1
            if isinstance(one, dict):
                if not all(isinstance(key, str | int) for key in one):
                    return False
                inside += one.values()
            elif isinstance(one, list | tuple):
                inside += one
            elif one is not None and not isinstance(one, str | int | float):
                return False
        if num > _LARGEST:
            return False
        level = inside
    return not level
