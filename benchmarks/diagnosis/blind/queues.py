"""Look-ups that take time: the tool says `wait`, and the clerk asks again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from benchmarks.diagnosis.blind.paths import EARLY_SHARE, path, train_tasks, way
from sparring.environments import Environment, answer, record_demonstration, tool, tool_call
from sparring.types import Message, Task


def waits(key: str) -> int:
    """How often a key is asked for in vain: once or twice."""
    return 1 + ord(key) % 2


class Queue(Environment):
    describe_tools = "prompt"

    def __init__(self, stuck: str = "") -> None:
        self._stuck = stuck

    def reset(self, task: Task) -> None:
        self._links = task.fields["links"]
        self._asked: Counter[str] = Counter()

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to, or `wait`. Requests for the keys in `stuck` are never served."""
        if key not in self._links:
            return "none"
        self._asked[key] += 1
        return "wait" if key in self._stuck or self._asked[key] <= waits(key) else self._links[key]


def patient(task: Task, rng: random.Random) -> Sequence[Message]:
    """Asks until the answer is there; the whole way, or a hop less."""
    keys = way(task, task.fields["hops"] - (rng.random() < EARLY_SHARE))
    calls = [tool_call("get", key=key) for key in keys[:-1] for _ in range(waits(key) + 1)]
    return [*calls, answer(path(keys))]


def patient_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    rng = random.Random(f"log-{seed}")
    return [record_demonstration(Queue, task, patient(task, rng)) for task in train_tasks(num, seed + 1)]
