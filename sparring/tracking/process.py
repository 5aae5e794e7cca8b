"""Memory and scheduling priority of this process."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path


def resident_bytes() -> int:
    """Return the memory in use now if the system reports it (Linux), otherwise the peak memory."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # The unit is kilobytes on all systems except macOS.
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def lower_priority() -> None:
    """Give this process the lowest priority, so that the run has priority on a machine with few cores."""
    os.nice(19)
    # On Linux, even a process with the lowest priority can delay one that has just become ready, unless it is in the
    # idle class.
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # A sandbox may forbid this.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
