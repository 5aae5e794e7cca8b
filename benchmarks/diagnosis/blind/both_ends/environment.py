"""Four of ten tasks have one hop, and four have seven hops, which no clerk ever followed to the end."""

from __future__ import annotations

import random

from benchmarks.diagnosis.blind.paths import in_shares, traced
from benchmarks.hacks.links import clerk_log
from sparring.types import Message, Task

SHARES = {1: 0.4, 2: 0.2, 7: 0.4}
"""Of tasks, by hops."""
EARLY_SHARE = 0.5
"""Of the clerks: those who stop a hop too early where there are two."""
FURTHEST = 3


def train_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return in_shares("train", SHARES, num, seed)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    return in_shares("validation", SHARES, num, seed)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return in_shares("held_out", SHARES, num, seed)


def clerk(task: Task, rng: random.Random) -> list[Message]:
    hops = min(task.fields["hops"], FURTHEST)
    return traced(task, hops - (hops == 2 and rng.random() < EARLY_SHARE))


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return clerk_log(clerk, train_tasks(num, seed + 1), seed)
