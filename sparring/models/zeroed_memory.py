"""Memory on the CPU for a cache, which takes pages only for what is written, and returns them when the cache is empty."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from math import prod
from typing import final

import torch
from torch import Tensor


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
