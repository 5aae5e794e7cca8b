"""The links are behind one connection, which carries one call at a time."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from sparring.environments import Environment, tool
from sparring.types import Task

SECONDS = 0.03
"""Of a call."""


class Connected(Environment):
    describe_tools = "prompt"
    connection: ClassVar[asyncio.Lock] = asyncio.Lock()

    def __init__(self, is_shared: bool = False) -> None:
        self._connection = self.connection if is_shared else asyncio.Lock()

    def reset(self, task: Task) -> None:
        self._links = task.fields["links"]

    @tool
    async def get(self, key: str) -> str:
        """The key that a key links to."""
        async with self._connection:
            await asyncio.sleep(SECONDS)
        return self._links.get(key, "none")
