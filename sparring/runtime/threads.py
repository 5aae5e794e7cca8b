"""Threads for work on long texts and for functions that block, apart from those of `asyncio.to_thread`."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
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


async def run_in_own_thread(
    function: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """Return the function's result without blocking the event loop, or raise what it raises.

    Each call has a thread of its own, so calls that wait for each other or for the event loop never lack one. A call that
    is cancelled runs to its end, and its result is discarded. It does not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function(*arguments, **options))
        except BaseException as error:  # noqa: BLE001 (the caller gets it)
            errors.append(error)
        with contextlib.suppress(RuntimeError):  # the event loop may be closed
            loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))

    context = contextvars.copy_context()
    threading.Thread(target=lambda: context.run(run), name="sparring-call", daemon=True).start()
    await ended
    if errors:
        raise errors[0]
    return results[0]
