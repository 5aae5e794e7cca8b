"""A clock that only moves when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class VirtualTime:
    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = itertools.count()
        self._sleeping: list[tuple[float, int, asyncio.Future[None]]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleeping, (self.now + seconds, next(self._numbers), waking))
        await waking

    async def advance(self, seconds: float) -> None:
        """Let time pass; every task that wakes in it runs until nothing is left to do."""
        end = self.now + seconds
        await settled()
        while self._sleeping and self._sleeping[0][0] <= end:
            self.now, _, waking = heapq.heappop(self._sleeping)
            if not waking.done():
                waking.set_result(None)
            await settled()
        self.now = end


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)
