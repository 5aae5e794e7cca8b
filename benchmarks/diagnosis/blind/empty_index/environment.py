"""A service that was deployed without its links. Tasks have two or more hops, so their answers cannot be guessed."""

from __future__ import annotations

from benchmarks.diagnosis.blind.paths import in_shares
from benchmarks.hacks.links import Links
from sparring.types import Task

SHARES = {2: 0.5, 3: 0.5}
"""Of tasks, by hops."""


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return in_shares("train", SHARES, num, seed)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    return in_shares("validation", SHARES, num, seed)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return in_shares("held_out", SHARES, num, seed)


class Deployed(Links):
    def __init__(self, is_loaded: bool = True) -> None:
        self._is_loaded = is_loaded

    def reset(self, task: Task) -> None:
        self._links = task.fields["links"] if self._is_loaded else {}
