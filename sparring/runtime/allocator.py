"""The memory that C's malloc has freed: keep it in the process, so that every step reuses the pages of the previous step, or
return it to the kernel."""

from __future__ import annotations

import ctypes
import sys
import threading

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -3, -4, -8
"""The parameters of glibc's mallopt(3)."""
LARGE_BLOCK = 2**20
"""The least size in bytes of the blocks that `return_large_blocks` returns to the kernel."""
_SECONDS = 10.0
"""The delay of `return_freed_memory_soon`."""

_is_kept = False
"""Whether this process keeps freed memory."""
_waiting = threading.Lock()
"""Locked while `return_freed_memory_soon` waits."""


def keep_freed_memory() -> None:
    """Make glibc's malloc keep large freed blocks from now on. Do nothing with any other C library.

    Memory of an earlier model is first returned to the kernel, because its fragments can seldom be reused.

    Without this setting, every step unmaps hundreds of megabytes of activations and then faults them in again, page by
    page. On two cores, this took a quarter of a training step, and much more on a kernel that is slow to provide pages
    (docs/notebook/speed.md).
    """
    global _is_kept
    library = _glibc()
    if library is None:
        return
    _is_kept = True
    library.malloc_trim(0)
    library.mallopt(M_MMAP_MAX, 0)
    library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(M_TOP_PAD, 64 * 2**20)
    library.mallopt(M_ARENA_MAX, 1)


def return_large_blocks() -> None:
    """From now on, return each large block to the kernel as soon as it is freed. Do nothing with any other C library than
    glibc.

    This is for weights that are gathered layer by layer. Otherwise, the input of the next layer, which is kept, may take the
    first part of the memory of a layer that was given up, and then the next layer does not fit into the rest: with SmolLM2-135M
    in two parts, a step with 512 tokens took 1.9 GB instead of 1.0, in the same time.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def return_freed_memory() -> None:
    """Return the freed memory of this process to the kernel, for the time when large blocks follow that do not fit between
    the blocks in use. Do nothing with any C library other than glibc."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def return_freed_memory_soon() -> None:
    """Call `return_freed_memory` in another thread in ten seconds, when what a large request needed is free. Do nothing if this
    is already waiting, and in a process that keeps freed memory."""
    if _is_kept or not _waiting.acquire(blocking=False):
        return
    timer = threading.Timer(_SECONDS, _return_waited)
    timer.daemon = True
    timer.start()


def _return_waited() -> None:
    _waiting.release()
    return_freed_memory()


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None)
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError):
        return None
