"""Shared code of the cases in `blind2` and `blind2_healthy`: tasks by split, logs from several kinds of clerks, and
calls."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from sparring.environments import Environment, record_demonstration
from sparring.types import Json, Message, Task, Trajectory

LETTERS = "abcdefghijklmnop"

Script: TypeAlias = Callable[[Task, random.Random], Sequence[Message]]
"""The messages of one kind of clerk in a task."""


def drawn(make: Callable[[str, random.Random], Task], split: str, num: int, seed: int) -> list[Task]:
    """Return the tasks of one split, each with a separate id."""
    rng = random.Random(f"{split}-{seed}")
    return [make(f"{split}-{index}", rng) for index in range(num)]


def mixed_log(
    environment: Callable[[], Environment], of_tasks: Sequence[Task], kinds: Sequence[tuple[float, Script]], seed: int
) -> list[list[Message]]:
    """Return conversations of clerks, one per task, with the real results of the tools.

    Each kind of clerk has a share of the conversations and a script.
    """
    rng = random.Random(f"clerks-{seed}")
    shares, scripts = [share for share, _ in kinds], [script for _, script in kinds]
    log = []
    for task in of_tasks:
        script = rng.choices(scripts, shares)[0]
        log.append(record_demonstration(environment, task, script(task, rng)))
    return log


def arguments_of(trajectory: Trajectory, tool: str) -> list[dict[str, Json]]:
    """Return the arguments of the successful calls to a tool, in order."""
    return [one["arguments"] for one in trajectory.transitions if one["tool"] == tool and one["error"] is None]  # pyright: ignore[reportReturnType]


def answer_of(trajectory: Trajectory) -> str:
    """Return the last message if the policy ended the episode with it, otherwise an empty text."""
    last = trajectory.messages[-1]
    return str(last.get("content")) if last["role"] == "assistant" and not last.get("tool_calls") else ""
