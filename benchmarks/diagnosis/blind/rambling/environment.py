"""A log in which a few clerks do not stop at the end of the path."""

from __future__ import annotations

import random

from benchmarks.diagnosis.blind.paths import hasty, log_of, path, traced, way
from benchmarks.hacks.links import KEYS
from sparring.environments import answer
from sparring.types import Message, Task

RAMBLING_SHARE = 0.06


def talkative(task: Task, rng: random.Random) -> list[Message]:
    if rng.random() < RAMBLING_SHARE:
        return [*traced(task)[:-1], answer(path([*way(task), *rng.sample(KEYS, 12)]))]
    return hasty(task, rng)


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return log_of(talkative, num, seed)
