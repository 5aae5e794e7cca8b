"""A log from the time when the tool was renamed: clerks who used the old name received an error and gave up."""

from __future__ import annotations

import random

from benchmarks.diagnosis.blind.paths import path, traced, train_tasks, way
from benchmarks.hacks.links import Links
from sparring.environments import answer, record_demonstration, tool, tool_call
from sparring.types import Message

OLD_NAME_SHARE = 0.4


class Then(Links):
    """The environment in which the clerks worked. In training, the tool has only its new name."""

    @tool
    def fetch(self, key: str) -> str:
        """The old name."""
        return "error: no tool 'fetch'; there are get"


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    rng = random.Random(f"log-{seed}")
    conversations = []
    # Tasks of another seed than the ones to train on.
    for task in train_tasks(num, seed + 1):
        old = [tool_call("fetch", key=task.fields["start"]), answer(path(way(task, 0)))]
        script = old if rng.random() < OLD_NAME_SHARE else traced(task)
        conversations.append(record_demonstration(Then, task, script))
    return conversations
