"""A slow environment. A step takes as long as with a large model, but needs as little computation as with a tiny
model."""

from __future__ import annotations

import asyncio
from typing import Any

from sparring.environments import Environment, tool
from sparring.models.small import small_model
from sparring.runtime.faults import fault_point
from sparring.types import Message, Task, Trajectory


class Slow(Environment):
    describe_tools = "prompt"

    def __init__(self, seconds: float = 0.1) -> None:
        self.seconds = seconds

    async def reset(self, task: Task) -> list[Message]:
        try:
            fault_point("slow.hang")
        except TimeoutError:
            await asyncio.Event().wait()
        fault_point("slow.reset")
        await asyncio.sleep(self.seconds)
        return list(task.messages)

    @tool
    def look(self, word: str) -> str:
        """The word again."""
        return word


def reward(trajectory: Trajectory) -> float:
    return float(trajectory.turns[0].token_ids[0] % 2)


def train_tasks() -> list[Task]:
    return [Task(id=f"t{number}", messages=({"role": "user", "content": f"{number}?"},)) for number in range(64)]


def build(seed: int) -> tuple[Any, Any]:
    return small_model(seed, ["user\n1?", "assistant\n1"], width=32, layers=1)
