"""Threads for work on long texts, apart from those of `asyncio.to_thread`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from sparring.runtime.allocator import return_freed_memory_soon

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_LONG_TEXTS = ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 1) // 2)), thread_name_prefix="sparring-text")
"""Few threads, so that strangers who send long texts take neither all cores nor, because each thread keeps the memory that it
has freed, much memory."""


async def process_long_text(
    function: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """Return the function's result without blocking the event loop. Calls of the whole process share a few threads. The memory
    that they have freed is returned to the kernel later."""
    call = asyncio.get_running_loop().run_in_executor(_LONG_TEXTS, lambda: function(*arguments, **options))
    try:
        return await call
    finally:
        return_freed_memory_soon()
