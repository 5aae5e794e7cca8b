"""Training has tasks of all kinds. Validation has only tasks of three hops, and nearly every clerk stopped before the
third."""

from __future__ import annotations

import random

from benchmarks.diagnosis.blind.paths import in_shares, log_of, traced
from sparring.types import Message, Task

SHARES = {1: 0.3, 2: 0.3, 3: 0.4}
"""Of tasks to train on, by hops."""
HARD = {1: 0.0, 2: 0.0, 3: 1.0}
EARLY_SHARES = {1: 0.0, 2: 0.5, 3: 0.9}
"""By hops, of the clerks: those who stop a hop too early."""


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return in_shares("train", SHARES, num, seed)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    return in_shares("validation", HARD, num, seed)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return in_shares("held_out", HARD, num, seed)


def clerk(task: Task, rng: random.Random) -> list[Message]:
    hops = task.fields["hops"]
    return traced(task, hops - (rng.random() < EARLY_SHARES[hops]))


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return log_of(clerk, num, seed)
