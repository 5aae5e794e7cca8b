"""Memory on the CPU: keep freed memory in the process, so that every step reuses the pages of the previous step, and return
the memory of a cache that is empty."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from math import prod
from typing import final

import torch
from torch import Tensor

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -3, -4, -8
"""The parameters of glibc's mallopt(3)."""
LARGE_BLOCK = 2**20
"""The least size in bytes of the blocks that `return_large_blocks` returns to the kernel."""


def keep_freed_memory() -> None:
    """Make glibc's malloc keep large freed blocks from now on. Do nothing with any other C library.

    Memory of an earlier model is first returned to the kernel, because its fragments can seldom be reused.

    Without this setting, every step unmaps hundreds of megabytes of activations and then faults them in again, page by
    page. On two cores, this took a quarter of a training step, and much more on a kernel that is slow to provide pages
    (docs/notebook/speed.md).
    """
    library = _glibc()
    if library is None:
        return
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


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None)
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError):
        return None


@final
class ZeroedMemory:
    """Tensors on the CPU that are zero at first, and take no memory until they are written. (`torch.zeros` writes every
    page.)"""

    def __init__(self, num_bytes: int) -> None:
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if sys.platform != "win32" else {}
        self._pages = mmap.mmap(-1, max(1, num_bytes), **private)
        self._bytes = torch.frombuffer(self._pages, dtype=torch.uint8)
        self._used = 0

    def take(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor in the part that is not taken yet. Raises ValueError if this part is too small."""
        begin, end = self._used, self._used + prod(size) * dtype.itemsize
        if end > len(self._bytes):
            raise ValueError(
                f"a tensor of {end - begin} bytes does not fit into the {len(self._bytes) - begin} that are left"
            )
        self._used = end
        return self._bytes[begin:end].view(dtype).view(tuple(size))

    def clear(self) -> None:
        """Return all pages to the kernel. On Linux, the tensors are zero again; elsewhere, nothing may change."""
        if sys.platform.startswith("linux"):
            self._pages.madvise(mmap.MADV_DONTNEED)
