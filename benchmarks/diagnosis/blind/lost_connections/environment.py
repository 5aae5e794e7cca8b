"""The links are behind a pool of connections. Each connection serves two calls of an episode."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from sparring.environments import Environment, tool
from sparring.types import Task

POOL_SIZE = 240
CALLS_PER_CONNECTION = 2


class Pooled(Environment):
    describe_tools = "prompt"
    pool: ClassVar[asyncio.Semaphore] = asyncio.Semaphore(POOL_SIZE)

    def __init__(self, gives_back: bool = True) -> None:
        self._gives_back = gives_back
        self._calls = self._held = 0

    def reset(self, task: Task) -> None:
        self._links = task.fields["links"]

    @tool
    async def get(self, key: str) -> str:
        """The key that a key links to."""
        if self._calls % CALLS_PER_CONNECTION == 0:
            await self.pool.acquire()
            self._held += 1
        self._calls += 1
        return self._links.get(key, "none")

    def close(self) -> None:
        for _ in range(self._held if self._gives_back else min(self._held, 1)):
            self.pool.release()
