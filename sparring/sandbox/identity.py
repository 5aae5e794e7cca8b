"""Names of a sandbox's resources on the host. A name identifies its creator, so that the resources of an ended process
can be removed."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

PREFIX = "sparring-"
_counter = itertools.count()


def new_name() -> str:
    """Return a new name `sparring-PID-START-COUNT`. PID and start time identify one process of this machine
    uniquely."""
    return f"{PREFIX}{os.getpid()}-{start_of(os.getpid())}-{next(_counter)}"


def is_abandoned(name: str) -> bool:
    """Return True if this is such a name and its creator has ended."""
    parts = name.removeprefix(PREFIX).split("-")
    if not name.startswith(PREFIX) or len(parts) < 3 or not (parts[0] + parts[1]).isdecimal():
        return False
    return start_of(int(parts[0])) != parts[1]


def start_of(pid: int) -> str | None:
    """Return the start time of a process, in clock ticks since boot (proc(5), stat, field 22), or None if there is no
    such process."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return None
    return content.rpartition(")")[2].split()[19]
