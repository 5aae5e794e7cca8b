"""Memory and scheduling priority of this process."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path


def resident_bytes() -> int:
    """Return the memory in use now, where the system reports it (Linux), else the peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Kilobytes everywhere except on macOS.
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def lower_priority() -> None:
    """Give this process the lowest priority, so that the run goes first where cores are few."""
    os.nice(19)
    # Linux: even at the lowest niceness a process can delay one that has just become ready; in the idle class it cannot.
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
