"""A log without mistakes, and validation on the same starts with different links."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.diagnosis.blind.paths import log_of, traced, train_tasks
from sparring.types import Message, Task


def tidy(task: Task, rng: random.Random) -> list[Message]:
    return traced(task)


def tidy_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return log_of(tidy, num, seed)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    return [replace(task, id=f"validation-{index}") for index, task in enumerate(train_tasks(num, seed + 2))]
