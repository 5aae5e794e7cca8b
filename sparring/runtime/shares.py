"""A limited share of one core, for the work of one agent in a process that serves many.

Reading and tokenizing a long request takes up to a tenth of a second, in which Python lets the other requests run slowly or not
at all. An agent that sends such requests again and again, even if each is refused, would take most of the time of the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self, TypeVar, final

SHARE = 0.2
"""The share of a core. Reading and tokenizing 100,000 characters takes about 0.1 s, so two of them a second are not delayed."""
AT_ONCE_SECONDS = 0.05
"""The time that may be used at once after a pause."""

Result = TypeVar("Result")


@final
class CoreShare:
    """Limits work to `SHARE` of a core. As a context, it waits until work may begin; only one piece of work runs at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._paid_at = 0.0
        """When the share will have paid for all work so far, by `clock`."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which this share limits `run_within_share` and `process_long_text`."""
        token = _applied.set(self)
        try:
            yield
        finally:
            _applied.reset(token)

    async def __aenter__(self) -> Self:
        await self._lock.acquire()
        try:
            if (seconds := self._paid_at - AT_ONCE_SECONDS / SHARE - self._clock()) > 0:
                await asyncio.sleep(seconds)
        except BaseException:
            self._lock.release()
            raise
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._lock.release()

    def run(self, function: Callable[[], Result]) -> Result:
        """Return the function's result. Its processor time, that of this thread, is paid by the share."""
        began = time.thread_time()
        try:
            return function()
        finally:
            seconds = time.thread_time() - began
            self._paid_at = max(self._paid_at, self._clock()) + seconds / SHARE


_applied: ContextVar[CoreShare | None] = ContextVar("share", default=None)


def applied_share() -> CoreShare | None:
    """Return the share that limits the work of the current task, if there is one."""
    return _applied.get()


async def run_within_share(function: Callable[[], Result]) -> Result:
    """Return the function's result. Before it is called in the event loop, wait for the share that is applied."""
    share = _applied.get()
    if share is None:
        return function()
    async with share:
        return share.run(function)
