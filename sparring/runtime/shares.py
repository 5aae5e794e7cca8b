"""A limited share of one core, for the work of one agent in a process that serves many.

Reading and tokenizing a long request takes up to a tenth of a second, in which Python lets the other requests run slowly or not
at all. An agent that sends such requests again and again, even if each is refused, would take most of the time of the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, final

SHARE = 0.2
"""The share of a core. Reading and tokenizing 100,000 characters takes about 0.1 s, so two of them a second are not delayed."""
AT_ONCE_SECONDS = 0.05
"""The time that may be used at once after a pause."""

Result = TypeVar("Result")


@final
class CoreShare:
    """Limits work to `SHARE` of a core. Only one piece of work runs at a time, in the order in which they came:

    await share.acquire()
    try:
        share.run(work)
    finally:
        share.release()
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        work_clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Create a share. `work_clock` returns the processor seconds of the thread that calls it."""
        self._clock, self._work_clock, self._sleep = clock, work_clock, sleep
        self._lock = asyncio.Lock()
        self._paid_at = 0.0
        """When the share will have paid for all work so far, by `clock`."""

    async def acquire(self) -> None:
        """Wait until a piece of work may begin."""
        await self._lock.acquire()
        try:
            if (seconds := self._paid_at - AT_ONCE_SECONDS / SHARE - self._clock()) > 0:
                await self._sleep(seconds)
        except BaseException:
            self._lock.release()
            raise

    def release(self) -> None:
        """Let the next piece of work begin."""
        self._lock.release()

    def run(self, function: Callable[[], Result]) -> Result:
        """Return the function's result. Its processor time, that of this thread, is paid by the share."""
        began = self._work_clock()
        try:
            return function()
        finally:
            seconds = self._work_clock() - began
            self._paid_at = max(self._paid_at, self._clock()) + seconds / SHARE


_applied: ContextVar[CoreShare | None] = ContextVar("share", default=None)


@contextmanager
def apply_share(share: CoreShare | None) -> Iterator[None]:
    """Return a context in which this share, or none, limits `run_within_share` and `process_long_text`. A share of another
    request, whose context the connection may have, does not apply."""
    token = _applied.set(share)
    try:
        yield
    finally:
        _applied.reset(token)


def applied_share() -> CoreShare | None:
    """Return the share that limits the work of the current task, if there is one."""
    return _applied.get()


async def run_within_share(function: Callable[[], Result]) -> Result:
    """Return the function's result. Before it is called in the event loop, wait for the share that is applied."""
    share = _applied.get()
    if share is None:
        return function()
    await share.acquire()
    try:
        return share.run(function)
    finally:
        share.release()
