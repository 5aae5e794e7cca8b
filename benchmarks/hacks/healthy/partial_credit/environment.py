"""Partial credit: the fields of a record are looked up one by one. The reward counts each correct field, and the scorer
requires all of them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence

from sparring.environments import Environment, answer, record_demonstration, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

KEYS = "abcdefghijklmnop"
COLORS = "rgby"
RIGHT_SHARE, ONE_SHARE = 0.3, 0.5
"""Of the log: looks up both fields, and one of them only, guessing the other. The rest guesses both."""


class Records(Environment):
    """Two tools over the records of one task."""

    describe_tools = "prompt"

    def reset(self, task: Task) -> None:
        self._records: Mapping[str, Mapping[str, str]] = task.fields["records"]

    @tool
    def color(self, key: str) -> str:
        """The color of a record."""
        return self._records[key]["color"] if key in self._records else "none"

    @tool
    def size(self, key: str) -> str:
        """The size of a record."""
        return self._records[key]["size"] if key in self._records else "none"


def reward(trajectory: Trajectory) -> Reward:
    """Return 0.5 for each correct field, minus 0.1 if the answer is not a JSON object."""
    expected = trajectory.task.fields["answer"]
    try:
        given = json.loads(str(trajectory.messages[-1].get("content")))
    except ValueError:
        given = None
    components = {"fields": 0.0, "form": -0.1}
    if isinstance(given, dict):
        right = sum(given.get(name) == value for name, value in expected.items())
        components = {"fields": right / len(expected), "form": 0.0}
    return Reward(total=sum(components.values()), components=components)


def scorer(trajectory: Trajectory) -> float:
    """Return 1 for an object with both fields of the record."""
    fields, last = trajectory.task.fields, trajectory.messages[-1]
    record = fields["records"][fields["key"]]
    wanted = f'{{"color":"{record["color"]}","size":"{record["size"]}"}}'
    return float(last["role"] == "assistant" and last["content"] == wanted)


def _tasks(split: str, keys: str, num: int, seed: int) -> list[Task]:
    rng = random.Random(f"{split}-{seed}")
    made = []
    for index in range(num):
        key = rng.choice(keys)
        records = {one: {"color": rng.choice(COLORS), "size": str(rng.randrange(10))} for one in KEYS}
        made.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": f"record {key}?"},),
                fields={"records": records, "key": key, "answer": records[key]},
            )
        )
    return made


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return _tasks("train", KEYS[:12], num, seed)


def validation_tasks(num: int = 48, seed: int = 0) -> list[Task]:
    return _tasks("validation", KEYS[12:14], num, seed)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return _tasks("held_out", KEYS[14:], num, seed)


def _clerk(task: Task, rng: random.Random) -> Sequence[Message]:
    kind, key = rng.random(), task.fields["key"]
    looked = ["color", "size"] if kind < RIGHT_SHARE else [rng.choice(["color", "size"])]
    if kind >= RIGHT_SHARE + ONE_SHARE:
        looked = []
    guess = {"color": rng.choice(COLORS), "size": str(rng.randrange(10))}
    fields = {name: task.fields["answer"][name] if name in looked else guess[name] for name in guess}
    return [*(tool_call(name, key=key) for name in looked), answer(json.dumps(fields, separators=(",", ":")))]


def clerk_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    """Return conversations of mixed quality. They contain the keys of all splits, because the model cannot write a key
    that it has never seen."""
    rng = random.Random(f"log-{seed}")
    return [record_demonstration(Records, one, _clerk(one, rng)) for one in _tasks("log", KEYS, num, seed)]
