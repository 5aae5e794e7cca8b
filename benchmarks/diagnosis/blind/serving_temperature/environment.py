"""A log whose clerks are nearly always right one hop away, and seldom further."""

from __future__ import annotations

import random

from benchmarks.diagnosis.blind.paths import log_of, traced
from sparring.types import Message, Task

RIGHT_SHARE = {1: 0.9, 2: 0.15, 3: 0.15}
"""By hops. The rest stops a hop too early."""


def uneven(task: Task, rng: random.Random) -> list[Message]:
    hops = task.fields["hops"]
    return traced(task, hops - (rng.random() > RIGHT_SHARE[hops]))


def uneven_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return log_of(uneven, num, seed)
