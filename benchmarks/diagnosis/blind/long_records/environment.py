"""Links that come with notes. In each of the clerks' episodes, one record did not have its notes yet."""

from __future__ import annotations

import random
from functools import partial

from benchmarks.diagnosis.blind.paths import traced, train_tasks
from sparring.environments import Environment, record_demonstration, tool
from sparring.types import Message, Task

NUM_NOTES = 2
EARLY_SHARE = 0.2
"""Of the clerks: those who stop a hop too early."""


class Records(Environment):
    describe_tools = "prompt"

    def __init__(self, short_record: int | None = None) -> None:
        """`short_record` is the index, from 0, of the look-up whose record has no notes."""
        self._short_record = short_record
        self._num_calls = 0

    def reset(self, task: Task) -> None:
        self._links = task.fields["links"]

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to, and who saw it."""
        if key not in self._links:
            return "none"
        num_notes = 0 if self._num_calls == self._short_record else NUM_NOTES
        self._num_calls += 1
        return self._links[key] + "".join(f" seen by desk {(ord(key) + index) % 10}" for index in range(num_notes))


def clerk(task: Task, rng: random.Random) -> list[Message]:
    script = traced(task, task.fields["hops"] - (rng.random() < EARLY_SHARE))
    return record_demonstration(partial(Records, rng.randrange(3)), task, script)


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    rng = random.Random(f"log-{seed}")
    return [clerk(task, rng) for task in train_tasks(num, seed + 1)]
