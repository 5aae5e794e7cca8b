"""Tasks that every clerk completed, tasks that half of them completed, and tasks that few completed."""

from __future__ import annotations

import random

from benchmarks.diagnosis.blind.paths import in_shares, traced
from benchmarks.hacks.links import clerk_log
from sparring.types import Message, Task

SHARES = {1: 0.55, 2: 0.15, 3: 0.3}
"""Of tasks, by hops."""
EARLY_SHARES = {1: 0.0, 2: 0.5, 3: 0.85}
"""By hops, of the clerks: those who stop a hop too early."""


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return in_shares("train", SHARES, num, seed)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    return in_shares("validation", SHARES, num, seed)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return in_shares("held_out", SHARES, num, seed)


def clerk(task: Task, rng: random.Random) -> list[Message]:
    hops = task.fields["hops"]
    return traced(task, hops - (rng.random() < EARLY_SHARES[hops]))


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return clerk_log(clerk, train_tasks(num, seed + 1), seed)
