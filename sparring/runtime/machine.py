"""The processors and the memory that this process may use: those of the machine, or fewer in a container, in a job of a
scheduler, or under `taskset`.

Kernel documentation: admin-guide/cgroup-v2.rst; scheduler/sched-bwc.rst and admin-guide/cgroup-v1/memory.rst.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

MEMBERSHIP, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
ALLOWED = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""The number of processors that this process may run on. It is read before torch is imported: with OMP_PROC_BIND, that binds the
importing thread to one processor."""


def granted_processors() -> float:
    """Return how many processors' time this process may use: the processors that it may run on, or less if its cgroups grant
    less."""
    return min([float(ALLOWED), *CGroups().processors()])


def count_processors() -> int:
    """Return the number of threads that `granted_processors` keep busy, at least 1. One more would only take time from the
    others."""
    return max(1, math.ceil(granted_processors()))


def default_threads(num_processes: int = 1) -> int:
    """Return the number of threads for the computations of each of these processes where no setting states it: the environment
    variable OMP_NUM_THREADS, or the processors. Several processes divide the processors among them."""
    share = max(1, count_processors() // num_processes)
    # OMP_NUM_THREADS may be a list for nested regions. An invalid value is ignored, as OpenMP does.
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not re.fullmatch(r"0*[1-9]\d{0,3}", wanted, flags=re.ASCII):
        return share
    return int(wanted) if num_processes == 1 else min(int(wanted), share)


def total_bytes() -> int:
    """Return the size of the memory, or the memory limit of this process's cgroups if it is smaller."""
    return min([_physical_bytes(), *(limit for limit, _ in CGroups().memory())])


def available_bytes() -> int:
    """Return the memory that is available for new allocations: MemAvailable, or the total memory if there is no /proc. It is at
    most what remains of a memory limit of this process's cgroups."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", file.read(), flags=re.MULTILINE))
        free = int(sizes["MemAvailable"]) * 1024
    except (OSError, KeyError):
        free = _physical_bytes()
    return min([free, *(limit - used for limit, used in CGroups().memory())])


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@final
@dataclass(frozen=True, slots=True)
class CGroups:
    """The limits of the cgroups of this process, of both versions. A group's limits also apply to the groups in it."""

    membership: Path = MEMBERSHIP
    root: Path = ROOT

    def processors(self) -> Iterator[float]:
        """Yield each limit on processor time, in processors."""
        for folder, version in self._folders("cpu"):
            try:
                if version == 1:
                    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
                else:
                    quota, period = _read(folder / "cpu.max").split()
                if int(quota) > 0:  # version 1 has -1 for no limit, and version 2 "max"
                    yield int(quota) / int(period)
            except (OSError, ValueError, ZeroDivisionError):
                continue

    def memory(self) -> Iterator[tuple[int, int]]:
        """Yield each memory limit and what is used of it, in bytes. Inactive file pages count as free, as in
        MemAvailable."""
        for folder, version in self._folders("memory"):
            limit, used = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
            )
            try:
                most = int(_read(folder / limit))  # "max" is no limit
                idle = dict(one.split() for one in _read(folder / "memory.stat").splitlines())
                yield most, int(_read(folder / used)) - int(idle.get("inactive_file", 0))
            except (OSError, ValueError):
                continue

    def _folders(self, controller: str) -> Iterator[tuple[Path, int]]:
        """Yield the folder and the version of each cgroup of this process that can have limits of a controller. In a
        container, the path of a group may not exist below the root, which is then the container's own group."""
        try:
            lines = _read(self.membership).splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, name = (*line.split(":", 2), "", "")[:3]
            if not name or (controllers and controller not in controllers.split(",")):
                continue
            # Controllers that are mounted together have a link each, but not in every container.
            for top in [self.root / one for one in (controller, controllers)] if controllers else [self.root]:
                folder = top / name.lstrip("/")
                for group in (folder, *folder.parents):
                    if not group.is_relative_to(top):
                        break
                    yield group, 1 if controllers else 2


def _read(path: Path) -> str:
    return os.fsdecode(path.read_bytes())  # a group's name may be any bytes
