"""Few tasks require seven hops, and the clerks gave up on these tasks after two hops."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.diagnosis.blind.paths import EARLY_SHARE, in_shares, traced
from benchmarks.hacks.links import clerk_log
from sparring.types import Message, Task

SHARES = {1: 0.3, 2: 0.63, 7: 0.07}
"""Of tasks, by hops."""
CLERKS_HOPS = 2
"""More no clerk walks."""


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return in_shares("train", SHARES, num, seed)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    """Return tasks with different link tables but the same starts (the policy knows too little about new starts)."""
    return [replace(task, id=f"validation-{index}") for index, task in enumerate(train_tasks(num, seed + 2))]


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return in_shares("held_out", SHARES, num, seed)


def clerk(task: Task, rng: random.Random) -> list[Message]:
    """Return a walk of the clerk: every clerk follows one hop, and half of them follow two."""
    hops = min(task.fields["hops"], CLERKS_HOPS)
    return traced(task, hops - (task.fields["hops"] == CLERKS_HOPS and rng.random() < EARLY_SHARE))


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return clerk_log(clerk, train_tasks(num, seed + 1), seed)
