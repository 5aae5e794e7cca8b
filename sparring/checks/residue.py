"""What episodes leave behind in the process: threads, processes, handles, open databases, and what modules keep."""

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sparring.checks.subject import Subject

MOST_OBJECTS = 50_000
"""Objects that are walked from one global."""


@dataclass(frozen=True, slots=True)
class Residue:
    """Counts at one moment; two of them are compared."""

    counts: Mapping[str, int]

    def more_than(self, before: Residue) -> dict[str, int]:
        """What there is more of, and how much."""
        found = {what: number - before.counts.get(what, 0) for what, number in self.counts.items()}
        return {what: number for what, number in found.items() if number > 0}


def residue() -> Residue:
    """Threads, child processes, open handles (files, sockets, pipes), open sqlite connections and asyncio tasks, now."""
    gc.collect()
    counts = {
        "threads": threading.active_count(),
        "processes": _num_children(),
        "file handles": len(os.listdir("/dev/fd")),
        "asyncio tasks": len(asyncio.all_tasks()),
        # By type: isinstance would ask each object of all libraries for its __class__, and run code of some.
        "sqlite connections": sum(
            _is_open(one) for one in gc.get_objects() if issubclass(type(one), sqlite3.Connection)
        ),
    }
    return Residue(counts)


def _globals_of(modules: tuple[ModuleType, ...]) -> dict[str, Any]:
    """What modules and their classes keep, by name: everything that may change and is not code of somebody else."""
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


def kept_globals(subject: Subject) -> dict[str, Any]:
    """What modules keep, apart from what the environment's class declares to outlive its episodes."""
    cls = subject.environment_class
    assert cls is not None, "the rule needs an environment"
    declared = {f"{one.__name__}.{name}" for one in cls.__mro__ for name in getattr(cls, "persists", ())}
    kept = _globals_of(subject.own_code.modules())
    return {name: value for name, value in kept.items() if name not in declared}


def size_of(root: Any) -> int:
    """How many references there are below a global, its own code and the modules apart: the same text in a list twice
    counts twice. Weak references keep nothing; pandas collects those of its views and clears them now and then."""
    return sum(not isinstance(other, weakref.ref) for one in _reached(root) for other in gc.get_referents(one))


def holds(root: Any, text: str) -> bool:
    """Whether a text is anywhere in what a global reaches."""
    return any(isinstance(one, str) and text in one for one in _reached(root))


def _reached(root: Any) -> Iterator[Any]:
    """Objects reached from one, itself included: not through modules, foreign classes, frames or module dictionaries."""
    skipped = {id(vars(module)) for module in list(sys.modules.values()) if isinstance(module, ModuleType)}
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


def _num_children() -> int:
    """Processes that this one started and that are still there, where the system says so (Linux)."""
    try:
        return sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children"))
    except OSError:
        return 0
