"""Keep freed memory in the process, so that every step reuses the pages of the previous step."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
"""The parameters of glibc's mallopt(3)."""


def keep_freed_memory() -> None:
    """Make glibc's malloc keep large freed blocks from now on. Do nothing with any other C library.

    Memory of an earlier model is first returned to the kernel, because its fragments can seldom be reused.

    Without this setting, every step unmaps hundreds of megabytes of activations and then faults them in again, page by
    page. On two cores, this took a quarter of a training step, and much more on a kernel that is slow to provide pages
    (docs/notebook/speed.md).
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
