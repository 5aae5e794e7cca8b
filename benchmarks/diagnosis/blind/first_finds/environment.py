"""All tasks have two hops, and one clerk in sixteen followed both."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.diagnosis.blind.paths import traced
from benchmarks.hacks.links import clerk_log, tasks
from sparring.types import Message, Task

HOPS = 2
RIGHT_SHARE = 1 / 16
"""Of the clerks; the others stop a hop too early."""


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return tasks("train", num, seed, hops=(HOPS,))


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    """Return tasks with different link tables but the same starts, because the policy knows too little about new
    starts."""
    return [replace(task, id=f"validation-{index}") for index, task in enumerate(train_tasks(num, seed + 2))]


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return tasks("held_out", num, seed, hops=(HOPS,))


def clerk(task: Task, rng: random.Random) -> list[Message]:
    return traced(task, HOPS if rng.random() < RIGHT_SHARE else HOPS - 1)


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return clerk_log(clerk, train_tasks(num, seed + 1), seed)
