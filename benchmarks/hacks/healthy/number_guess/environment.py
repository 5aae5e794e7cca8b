"""Number guess: find a number from 0 to 15 by asking whether it is less than other numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sparring.environments import Environment, answer, record_demonstration, tool, tool_call
from sparring.types import Message, Task, Trajectory

NUM = 16
ENOUGH = 4
"""Questions that always suffice."""
FULL_SHARE = 0.4
"""Of the log: asks to the end. The rest stops after one to three questions and guesses among what is left."""


class Number(Environment):
    """One tool over the number of one task."""

    describe_tools = "prompt"

    def reset(self, task: Task) -> None:
        self._number: int = task.fields["number"]

    @tool
    def less(self, than: int) -> str:
        """Whether the number is less."""
        return "yes" if self._number < than else "no"


def reward(trajectory: Trajectory) -> float:
    """Return 1 for the number."""
    return float(trajectory.messages[-1].get("content") == f"it is {trajectory.task.fields['number']}")


def scorer(trajectory: Trajectory) -> float:
    """Return 1 if the last word of the last message is the number."""
    last = trajectory.messages[-1]
    words = str(last.get("content")).split()
    number = trajectory.task.fields["number"]
    return float(last["role"] == "assistant" and words[:2] == ["it", "is"] and words[2:] == [str(number)])


def _tasks(split: str, num: int, seed: int) -> list[Task]:
    rng = random.Random(f"{split}-{seed}")
    return [
        Task(
            id=f"{split}-{index}",
            # A letter without meaning distinguishes the prompts of the splits.
            messages=({"role": "user", "content": f"number {rng.choice(_LETTERS[split])}?"},),
            fields={"number": rng.randrange(NUM)},
        )
        for index in range(num)
    ]


_LETTERS = {"train": "abcdefgh", "validation": "ijkl", "held_out": "mnop", "log": "abcdefghijklmnop"}


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return _tasks("train", num, seed)


def validation_tasks(num: int = 48, seed: int = 0) -> list[Task]:
    return _tasks("validation", num, seed)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return _tasks("held_out", num, seed)


def _clerk(task: Task, rng: random.Random) -> Sequence[Message]:
    low, high, calls = 0, NUM, []
    for _ in range(ENOUGH if rng.random() < FULL_SHARE else rng.randint(1, ENOUGH - 1)):
        middle = (low + high) // 2
        calls.append(tool_call("less", than=middle))
        low, high = (low, middle) if task.fields["number"] < middle else (middle, high)
    return [*calls, answer(f"it is {rng.randrange(low, high)}")]


def clerk_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    """Return conversations of mixed quality."""
    rng = random.Random(f"log-{seed}")
    return [record_demonstration(Number, one, _clerk(one, rng)) for one in _tasks("log", num, seed)]
