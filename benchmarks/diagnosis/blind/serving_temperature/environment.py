"""A log whose clerks look up one key and answer, however many hops are required. Few follow all hops."""

from __future__ import annotations

import random

from benchmarks.diagnosis.blind.paths import log_of, traced
from sparring.types import Message, Task

WHOLE_SHARE = 0.05


def short(task: Task, rng: random.Random) -> list[Message]:
    return traced(task, None if rng.random() < WHOLE_SHARE else 1)


def short_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return log_of(short, num, seed)
