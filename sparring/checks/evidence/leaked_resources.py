"""Resources that episodes leak in the process: threads, processes, handles, open databases, and module globals."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sqlite3
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sparring.checks.evidence.subject import Subject

MOST_OBJECTS = 50_000
"""The maximum number of objects to visit from one global."""


@dataclass(frozen=True, slots=True)
class ResourceCounts:
    """Counts of the open resources at one moment."""

    counts: Mapping[str, int]

    def more_than(self, before: ResourceCounts) -> dict[str, int]:
        """Return the resources whose count increased, with the increase."""
        found = {what: number - before.counts.get(what, 0) for what, number in self.counts.items()}
        return {what: number for what, number in found.items() if number > 0}


def count_resources() -> ResourceCounts:
    """Count threads, child processes, open handles (files, sockets, pipes), SQLite connections and asyncio tasks."""
    gc.collect()
    connections = _list_subclasses(sqlite3.Connection)
    counts = {
        "threads": threading.active_count(),
        "processes": _count_children(),
        "file handles": len(os.listdir("/dev/fd")),
        "asyncio tasks": len(asyncio.all_tasks()),
        # Compare the type: isinstance would read __class__ of every object, which runs code of some libraries.
        "sqlite connections": sum(_is_open(one) for one in gc.get_objects() if type(one) in connections),
    }
    return ResourceCounts(counts)


def _list_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_list_subclasses, kind.__subclasses__()))


def list_globals(modules: tuple[ModuleType, ...]) -> dict[str, Any]:
    """Return the values in modules and their classes, keyed by name, without imported code."""
    found: dict[str, Any] = {}
    for module in modules:
        for name, value in vars(module).items():
            if name.startswith("__") or inspect.ismodule(value):
                continue
            if inspect.isclass(value) or inspect.isfunction(value):
                if value.__module__ != module.__name__:
                    continue
                if inspect.isclass(value):
                    found.update(
                        {f"{name}.{key}": item for key, item in vars(value).items() if not key.startswith("__")}
                    )
                    continue
            found[name] = value
    return found


def find_kept_globals(subject: Subject) -> dict[str, Any]:
    """Return the module globals, except those that the environment's class declares in `persists`."""
    cls = subject.environment_class
    assert cls is not None, "the rule needs an environment"
    declared = {f"{one.__name__}.{name}" for one in cls.__mro__ for name in getattr(cls, "persists", ())}
    kept = list_globals(subject.own_code.modules())
    return {name: value for name, value in kept.items() if name not in declared}


def measure_sizes(kept: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of references that are reachable from each global, except those to code and modules. A text
    that appears twice in a list is counted twice. Weak references are ignored: pandas keeps weak references to its
    views and clears them from time to time."""
    skipped = _list_module_dictionaries()
    return {
        name: sum(
            not isinstance(other, weakref.ref) for one in _reached(root, skipped) for other in gc.get_referents(one)
        )
        for name, root in kept.items()
    }


def find_holding(kept: Mapping[str, Any], text: str) -> list[str]:
    """Return the globals from which an object that contains the text is reachable."""
    skipped = _list_module_dictionaries()
    return [
        name
        for name, root in kept.items()
        if any(isinstance(one, str) and text in one for one in _reached(root, skipped))
    ]


def _list_module_dictionaries() -> set[int]:
    return {id(vars(module)) for module in list(sys.modules.values()) if isinstance(module, ModuleType)}


def _reached(root: Any, skipped: Set[int]) -> Iterator[Any]:
    """Yield the object and everything that is reachable from it, except through modules, classes, frames or the skipped
    module dictionaries."""
    seen, queue = {id(root)}, deque([root])
    while queue and len(seen) < MOST_OBJECTS:
        one = queue.popleft()
        yield one
        for other in gc.get_referents(one):
            is_code = isinstance(other, ModuleType | type) or inspect.isframe(other) or inspect.iscode(other)
            if id(other) not in seen and id(other) not in skipped and not is_code:
                seen.add(id(other))
                queue.append(other)


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        _ = connection.total_changes
    except sqlite3.ProgrammingError:
        return False
    return True


def _count_children() -> int:
    """Return the number of running child processes, or 0 if the system does not list them (only Linux does)."""
    try:
        return sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children"))
    except OSError:
        return 0
