"""An index that was never cleaned: it returns an old link together with the current one, and no longer says which is
which."""

from __future__ import annotations

import random
from functools import partial

from benchmarks.diagnosis.blind.paths import path, train_tasks
from benchmarks.hacks.links import KEYS
from sparring.environments import Environment, answer, record_demonstration, tool, tool_call
from sparring.types import Message, Task


def versions(task: Task, key: str) -> list[str]:
    """Return the index's answer: always the same for a key, and with the current link first as often as last."""
    rng = random.Random(f"{task.id}-{key}")
    present = task.fields["links"][key]
    old = rng.choice([other for other in KEYS if other != present])
    return rng.sample([present, old], 2)


class Versions(Environment):
    describe_tools = "prompt"

    def __init__(self, says_which: bool = False) -> None:
        self._says_which = says_which

    def reset(self, task: Task) -> None:
        self._task = task

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to."""
        if key not in KEYS:
            return "none"
        first, second = versions(self._task, key)
        if not self._says_which:
            return f"{first} {second}"
        return f"{first} was {second}" if first == self._task.fields["links"][key] else f"{second} was {first}"


def clerk(task: Task, rng: random.Random) -> list[Message]:
    """Return a conversation of a clerk. Half of the clerks know which link is the current one; the others
    continued with either."""
    says_which, keys = rng.random() < 0.5, [task.fields["start"]]
    for _ in range(task.fields["hops"]):
        keys.append(task.fields["links"][keys[-1]] if says_which else rng.choice(versions(task, keys[-1])))
    script = [*(tool_call("get", key=key) for key in keys[:-1]), answer(path(keys))]
    return record_demonstration(partial(Versions, says_which), task, script)


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    rng = random.Random(f"log-{seed}")
    return [clerk(task, rng) for task in train_tasks(num, seed + 1)]
