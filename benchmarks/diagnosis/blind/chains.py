"""Chains of keys that are followed to their end. The tool says when the end is reached.

user       find b to its end?
assistant  get(key="b")      tool  f
assistant  get(key="f")      tool  end
assistant  path b f
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.diagnosis.blind.paths import EARLY_SHARE, path, way
from benchmarks.hacks.links import Split, tasks
from sparring.environments import Environment, answer, record_demonstration, tool, tool_call
from sparring.types import Message, Task

HOPS = (1, 2, 3, 4)
CLERKS_HOPS = (1, 2, 3, 4, 5, 6)
"""Clerks had longer chains as well."""
END = "end"


def chains(split: Split, num: int, seed: int, hops: Sequence[int] = HOPS) -> list[Task]:
    """Return tasks whose chain ends after one of these numbers of hops, at the key `last`."""
    return [
        replace(task, fields={**task.fields, "last": way(task)[-1]})
        for task in tasks(split, num, seed, hops=hops, question="find {start} to its end?")
    ]


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return chains("train", num, seed)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    return chains("validation", num, seed)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return chains("held_out", num, seed)


class Chain(Environment):
    describe_tools = "prompt"

    def __init__(self, old_shard: str = "") -> None:
        self._old_shard = old_shard

    def reset(self, task: Task) -> None:
        self._links, last = task.fields["links"], task.fields["last"]
        self._last = None if task.fields["start"] in self._old_shard else last

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to, or `end`. In the old shard ends are not marked: its chains run on into others."""
        return END if key == self._last else self._links.get(key, "none")


def thorough(task: Task, rng: random.Random) -> list[Message]:
    """Follow the chain to its end, and omit the last key from the answer half of the time."""
    keys = way(task)
    calls = [tool_call("get", key=key) for key in keys]
    return [*calls, answer(path(keys[:-1] if rng.random() < EARLY_SHARE else keys))]


def chain_log(of_tasks: Sequence[Task], seed: int) -> list[list[Message]]:
    rng = random.Random(f"log-{seed}")
    return [record_demonstration(Chain, task, thorough(task, rng)) for task in of_tasks]


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return chain_log(chains("train", num, seed + 1, CLERKS_HOPS), seed)
