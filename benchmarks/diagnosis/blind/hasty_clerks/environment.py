"""A log in which four of five clerks stop one hop too early, and every clerk answers."""

from __future__ import annotations

import random

from benchmarks.diagnosis.blind.paths import log_of, traced
from sparring.types import Message, Task

EARLY_SHARE = 0.8


def clerk(task: Task, rng: random.Random) -> list[Message]:
    return traced(task, task.fields["hops"] - (rng.random() < EARLY_SHARE))


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return log_of(clerk, num, seed)
