"""The links are behind several replicas, one of which is slow."""

from __future__ import annotations

import asyncio
import random
from typing import ClassVar

from sparring.environments import Environment, tool
from sparring.types import Task


class Replicated(Environment):
    describe_tools = "prompt"
    balancer: ClassVar[random.Random] = random.Random("replicas")

    def __init__(self, slow_share: float = 0.0) -> None:
        self._slow_share = slow_share

    def reset(self, task: Task) -> None:
        self._links = task.fields["links"]

    @tool
    async def get(self, key: str) -> str:
        """The key that a key links to."""
        if self.balancer.random() < self._slow_share:
            await asyncio.sleep(3.0)
        return self._links.get(key, "none")
