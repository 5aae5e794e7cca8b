"""The processes that descend from this one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none gets lost. Only Linux knows this."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Process ids of all that descend from this process, zombies too. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold anything.
            parent = int(stat.read_text("utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    around = [os.getpid()]
    while around:
        around = [child for parent in around for child in children.get(parent, ())]
        found += around
    return found


def end_descendants(*, within_seconds: float = 2.0) -> list[int]:
    """Kill and reap all that descends from this process; who was there. What is killed leaves its own children to us."""
    deadline = time.monotonic() + within_seconds
    ended: list[int] = []
    while True:
        _reap()
        left = descendants()
        if not left or time.monotonic() > deadline:
            return ended
        ended += [pid for pid in left if pid not in ended]
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
