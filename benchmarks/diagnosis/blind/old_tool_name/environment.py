"""A log from the days when the tool was renamed: who used the old name read an error and gave up."""

from __future__ import annotations

import random

from benchmarks.diagnosis.blind.paths import log_of, path, traced, way
from sparring.environments import answer, tool_call
from sparring.types import Message, Task

OLD_NAME_SHARE = 0.4


def renamed(task: Task, rng: random.Random) -> list[Message]:
    if rng.random() < OLD_NAME_SHARE:
        return [tool_call("fetch", key=task.fields["start"]), answer(path(way(task, 0)))]
    return traced(task)


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return log_of(renamed, num, seed)
