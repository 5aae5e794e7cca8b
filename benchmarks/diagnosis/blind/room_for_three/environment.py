"""A log in which few clerks read more records than the task requires. Four records fit only if one of them has no
notes."""

from __future__ import annotations

import random
from functools import partial

from benchmarks.diagnosis.blind.long_records.environment import Records
from benchmarks.diagnosis.blind.paths import traced, train_tasks
from sparring.environments import record_demonstration
from sparring.types import Message, Task

STEPS_ASIDE = {-1: 0.3, 0: 0.65, 1: 0.05}
"""Of the clerks, by hops more than asked for."""


def clerk(task: Task, rng: random.Random) -> list[Message]:
    (aside,) = rng.choices(list(STEPS_ASIDE), list(STEPS_ASIDE.values()))
    short_record = rng.randrange(3 if aside > 0 else 6)
    return record_demonstration(partial(Records, short_record), task, traced(task, task.fields["hops"] + aside))


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    rng = random.Random(f"log-{seed}")
    return [clerk(task, rng) for task in train_tasks(num, seed + 1)]
