"""Keep freed memory in the process, so that every step reuses the pages of the one before."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
"""Parameters of glibc's mallopt(3)."""


def keep_freed_memory() -> None:
    """Tell glibc's malloc not to hand large blocks back to the kernel from now on; does nothing with another C library.

    What a model before this one has left goes back first, since pieces of it are between others and seldom fit again.

    Activations of some hundred megabytes are otherwise unmapped and faulted in again page by page at every step, which
    cost a quarter of a training step on two cores, and far more where the kernel is slow to back pages (LOG.md).
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return
    trim(0)
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_TOP_PAD, 64 * 2**20)
    mallopt(M_ARENA_MAX, 1)
