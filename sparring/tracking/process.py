"""What the system says of this process, and how it ranks it."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path


def resident_bytes() -> int:
    """Memory that is in use now, where the system says so (Linux), else the most that was."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # In kilobytes everywhere but on macOS.
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def step_back() -> None:
    """Compute only when nobody else on the machine wants to: where cores are few, the run goes first."""
    os.nice(19)
    # Linux. A process of lowest niceness still keeps one that has just become ready waiting for its turn; an idle one does not.
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
