"""What the cases of `blind2` and `blind2_healthy` share: tasks by split, a log of clerks of several kinds, what was called."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from sparring.environments import Environment, record_demonstration
from sparring.types import Json, Message, Task, Trajectory

LETTERS = "abcdefghijklmnop"

Script: TypeAlias = Callable[[Task, random.Random], Sequence[Message]]
"""What one kind of clerk says in a task."""


def drawn(make: Callable[[str, random.Random], Task], split: str, num: int, seed: int) -> list[Task]:
    """Tasks of one split, each made with an id of its own."""
    rng = random.Random(f"{split}-{seed}")
    return [make(f"{split}-{index}", rng) for index in range(num)]


def mixed_log(
    environment: Callable[[], Environment], of_tasks: Sequence[Task], kinds: Sequence[tuple[float, Script]], seed: int
) -> list[list[Message]]:
    """Conversations of clerks, one a task, with what the tools really answered. A kind is its share and its script."""
    rng = random.Random(f"clerks-{seed}")
    shares, scripts = [share for share, _ in kinds], [script for _, script in kinds]
    log = []
    for task in of_tasks:
        script = rng.choices(scripts, shares)[0]
        log.append(record_demonstration(environment, task, script(task, rng)))
    return log


def arguments_of(trajectory: Trajectory, tool: str) -> list[dict[str, Json]]:
    """The arguments of the calls of a tool that went well, in order."""
    return [one["arguments"] for one in trajectory.transitions if one["tool"] == tool and one["error"] is None]  # pyright: ignore[reportReturnType]


def answer_of(trajectory: Trajectory) -> str:
    """The last message where the policy ended the episode with it, else empty."""
    last = trajectory.messages[-1]
    return str(last.get("content")) if last["role"] == "assistant" and not last.get("tool_calls") else ""
