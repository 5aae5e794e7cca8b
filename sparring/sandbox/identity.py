"""Names of what a sandbox makes on the host, from which its maker can be told: whose maker has gone may be removed."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

PREFIX = "sparring-"
_counter = itertools.count()


def new_name() -> str:
    """`sparring-PID-START-COUNT`; pid and start name one process of this machine for ever."""
    return f"{PREFIX}{os.getpid()}-{start_of(os.getpid())}-{next(_counter)}"


def is_abandoned(name: str) -> bool:
    """Whether this is such a name and its maker has gone."""
    parts = name.removeprefix(PREFIX).split("-")
    if not name.startswith(PREFIX) or len(parts) < 3 or not (parts[0] + parts[1]).isdecimal():
        return False
    return start_of(int(parts[0])) != parts[1]


def start_of(pid: int) -> str | None:
    """When a process started, in clock ticks since boot (proc(5), stat, field 22); None when there is none."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return None
    return content.rpartition(")")[2].split()[19]
