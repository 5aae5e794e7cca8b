"""Threads for work on long texts and for functions that block, apart from those of `asyncio.to_thread`."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from sparring.runtime.allocator import return_freed_memory_soon
from sparring.runtime.machine import count_processors
from sparring.runtime.shares import CoreShare, applied_share

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

SWITCH_SECONDS = 0.0005
"""The time after which a thread that computes lets the event loop run. With Python's default of 5 ms, a request that takes the
event loop ten steps waits 50 ms in all while another thread reads a long text."""

_LONG_TEXTS = ThreadPoolExecutor(max(1, min(4, count_processors() // 2)), thread_name_prefix="sparring-text")
"""Few threads, so that strangers who send long texts take neither all cores nor, because each thread keeps the memory that it
has freed, much memory."""


_switching = threading.Lock()
_num_switching = 0
"""The number of contexts of `let_event_loop_run`."""
_switched_before = sys.getswitchinterval()
"""The time before the first of them."""


@contextlib.contextmanager
def let_event_loop_run() -> Iterator[None]:
    """Let threads switch after `SWITCH_SECONDS`, until the last of these contexts ends, in whatever order they do."""
    global _num_switching, _switched_before
    with _switching:
        if not _num_switching:
            _switched_before = sys.getswitchinterval()
            sys.setswitchinterval(min(_switched_before, SWITCH_SECONDS))
        _num_switching += 1
    try:
        yield
    finally:
        with _switching:
            _num_switching -= 1
            if not _num_switching:
                sys.setswitchinterval(_switched_before)


async def process_long_text(
    function: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """Return the function's result without blocking the event loop, within the share of a core that is applied. Calls of the
    whole process share a few threads. The memory that they have freed is returned to the kernel later."""
    work, share = partial(function, *arguments, **options), applied_share()
    try:
        if share is None:
            return await asyncio.get_running_loop().run_in_executor(_LONG_TEXTS, work)
        await share.acquire()
        return await _release_after(share, work)
    finally:
        return_freed_memory_soon()


async def _release_after(share: CoreShare, work: Callable[[], Result]) -> Result:
    """Return the result of work in a thread, and release the share when the thread ends the work. This is later if the caller
    is cancelled: the next piece of work must not begin before this one is paid."""
    loop = asyncio.get_running_loop()

    def release(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop may be closed
            loop.call_soon_threadsafe(share.release)

    try:
        started = _LONG_TEXTS.submit(share.run, work)
    except BaseException:
        share.release()
        raise
    started.add_done_callback(release)
    return await asyncio.wrap_future(started)


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
