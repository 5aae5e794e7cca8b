"""Notice that a server has stopped answering while a request waits for it, and measure time that a server takes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import final

WATCH_SECONDS = 15.0
"""The time between two checks of a server while a request waits for it."""
CHECK_SECONDS = 20.0
"""The longest time that a check may take. SGLang's `/health` waits as long for the next result of a computation."""
MOST_FAILED = 2
"""The number of failed checks in a row after which a server counts as stopped."""


@final
class Watch:
    """Notices that a server has stopped answering while requests wait for it. A computation may take any time."""

    def __init__(self, is_healthy: Callable[[], Awaitable[bool]]) -> None:
        self._is_healthy = is_healthy
        self._answered = -math.inf
        """The monotonic time of the last answer to a request or a check."""
        self._check: asyncio.Task[bool] | None = None
        """The check that runs, if there is one. All waiting requests share it."""

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Raise TimeoutError in the block, which is a request, if the server stops answering."""

        async def check(limit: asyncio.Timeout) -> None:
            num_failed = 0
            while num_failed < MOST_FAILED:
                await asyncio.sleep(WATCH_SECONDS)
                num_failed = 0 if await self._has_answered() else num_failed + 1
            limit.reschedule(asyncio.get_running_loop().time())

        async with asyncio.timeout(None) as limit:
            checking = asyncio.create_task(check(limit))
            try:
                yield
            finally:
                checking.cancel()
        self._answered = time.monotonic()

    async def _has_answered(self) -> bool:
        """Return whether the server has answered another request or check since the last one, or answers a check."""
        if time.monotonic() - self._answered < WATCH_SECONDS:
            return True
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._ask())
        return await asyncio.shield(self._check)

    async def _ask(self) -> bool:
        is_healthy = await self._is_healthy()
        if is_healthy:
            self._answered = time.monotonic()
        return is_healthy


@final
class Stopwatch:
    """Measures the total time of the blocks that it surrounds, one at a time."""

    def __init__(self) -> None:
        self._seconds, self._since = 0.0, math.inf

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_exception: object) -> None:
        self._seconds, self._since = self.seconds, math.inf

    @property
    def seconds(self) -> float:
        """The time so far, with that of the present block."""
        return self._seconds + max(0.0, time.monotonic() - self._since)
