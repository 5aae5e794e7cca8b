"""The fields of a task, keyed by path."""

from __future__ import annotations

from sparring.types import Json, Task


def list_paths(task: Task) -> dict[str, Json]:
    """Return the values in a task's fields, keyed by paths such as `order.number`. Lists are not split."""
    found: dict[str, Json] = {}

    def walk(path: str, value: Json) -> None:
        if isinstance(value, dict):
            for name, one in value.items():
                walk(f"{path}.{name}" if path else str(name), one)
        else:
            found[path] = value

    walk("", dict(task.fields))
    return found
