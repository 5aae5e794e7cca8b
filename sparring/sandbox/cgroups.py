"""Linux cgroups: limits on the memory and the number of processes of a whole sandbox, if this process may create
cgroups.

Kernel documentation: admin-guide/cgroup-v2.rst; admin-guide/cgroup-v1/{memory,pids}.rst.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparring.sandbox.identity import PREFIX, is_abandoned, new_name


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A hierarchy in which cgroups can be created, and the limits that it supports."""

    version: Literal[1, 2]
    folder: Path
    controllers: frozenset[str]
    """The supported limits among `memory` and `pids`."""


@dataclass(frozen=True, slots=True)
class Group:
    """The cgroups of one sandbox: one folder per hierarchy."""

    folders: tuple[Path, ...]

    @property
    def num_memory_kills(self) -> int:
        """The number of processes that the kernel has killed because of a lack of memory."""
        found = 0
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                for line in _read(folder / name).splitlines():
                    key, _, value = line.partition(" ")
                    found += int(value) if key == "oom_kill" else 0
        return found


def hierarchies() -> tuple[Hierarchy, ...]:
    """Return the hierarchies in which this process can create cgroups with limits. This is tested by creating a
    cgroup."""
    found = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, names, path = line.split(":", 2)
        version: Literal[1, 2] = 1 if names else 2
        wanted = {"memory", "pids"} & set(names.split(",")) if names else {"memory", "pids"}
        own = _folder_of(version, names, path) if wanted else None
        if own is None:
            continue
        controllers = _controllers(version, own, wanted)
        if controllers:
            found.append(Hierarchy(version, own, frozenset(controllers)))
    return tuple(found)


def make_group(where: tuple[Hierarchy, ...], *, memory_bytes: int, processes: int) -> Group:
    """Create a cgroup with these limits in each hierarchy. If a cgroup cannot be created, remove the others and raise
    OSError."""
    folders: list[Path] = []
    try:
        for hierarchy in where:
            folder = hierarchy.folder / new_name()
            folder.mkdir()
            folders.append(folder)
            _limit(folder, hierarchy, memory_bytes, processes)
    except OSError:
        remove_group(Group(tuple(folders)))
        raise
    return Group(tuple(folders))


def remove_group(group: Group) -> None:
    """Remove a cgroup in which no process was started."""
    for folder in group.folders:
        with suppress(OSError):
            folder.rmdir()


def remove_abandoned(where: tuple[Hierarchy, ...]) -> int:
    """Remove cgroups whose creator ended without removing them. Return the number of removed cgroups."""
    removed = 0
    for hierarchy in where:
        for folder in hierarchy.folder.glob(f"{PREFIX}*"):
            if is_abandoned(folder.name):
                with suppress(OSError):
                    folder.rmdir()
                    removed += 1
    return removed


def _controllers(version: int, own: Path, wanted: set[str]) -> set[str]:
    """Return which of the requested limits a new cgroup below `own` supports."""
    if version == 2:
        # This is allowed only if the group has no processes or is the root. Otherwise the file is unchanged.
        with suppress(OSError):
            (own / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(wanted)))
    probe = own / new_name()
    try:
        probe.mkdir()
    except OSError:
        return set()
    try:
        files: Mapping[str, tuple[str, ...]] = {
            "memory": ("memory.max", "memory.limit_in_bytes"),
            "pids": ("pids.max",),
        }
        return {name for name in wanted if any(os.access(probe / file, os.W_OK) for file in files[name])}
    finally:
        probe.rmdir()


def _limit(folder: Path, hierarchy: Hierarchy, memory_bytes: int, processes: int) -> None:
    if "pids" in hierarchy.controllers:
        (folder / "pids.max").write_text(str(processes))
    if "memory" not in hierarchy.controllers:
        return
    limit, swap = ("memory.max", "memory.swap.max") if hierarchy.version == 2 else ("memory.limit_in_bytes", None)
    (folder / limit).write_text(str(memory_bytes))
    # Kernels without swap accounting have neither file.
    with suppress(OSError):
        if swap is not None:
            (folder / swap).write_text("0")
        else:
            (folder / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))


def _folder_of(version: int, names: str, path: str) -> Path | None:
    """Return where the cgroup `path` of a hierarchy is mounted (proc(5), mountinfo: fields 4 and 5 are root and mount
    point)."""
    for line in _read(Path("/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if (version == 2 and kind == "cgroup2") or (
            version == 1 and kind == "cgroup" and set(names.split(",")) <= set(options.split(","))
        ):
            root, mount = left.split()[3:5]
            return Path(mount) / path.removeprefix(root).lstrip("/")
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""
