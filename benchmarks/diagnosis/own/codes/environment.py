"""Codes to memorize, after all of them were changed. A task does not contain the code of its key, so the capacity of
the adapter limits what can be learned.

user       code of q?
assistant  q 5
"""

from __future__ import annotations

import random

from sparring.environments import Environment
from sparring.types import Message, Task, Trajectory

KEYS = "abcdefghijklmnopqrstuvwx"
DIGITS = "01234567"


OLD_SHARE = 0.3
"""The share of the log that answers with the code that was in use before. The rest guesses."""


_SHUFFLED = random.Random("codes").sample(KEYS, len(KEYS))
OLD_CODES = {key: DIGITS[place % len(DIGITS)] for place, key in enumerate(_SHUFFLED)}
"""Every digit is the code of three keys."""
CODES = {key: DIGITS[(int(code) + 3) % len(DIGITS)] for key, code in OLD_CODES.items()}


class Desk(Environment):
    """An environment without tools: the policy can only answer."""


def reward(trajectory: Trajectory) -> float:
    """Return 1 for the key and its code."""
    key = trajectory.task.fields["key"]
    return float(trajectory.messages[-1].get("content") == f"{key} {CODES[key]}")


def scorer(trajectory: Trajectory) -> float:
    """Return 1 if the last word of the answer is the code."""
    words = str(trajectory.messages[-1].get("content")).split()
    return float(bool(words) and words[-1] == CODES[trajectory.task.fields["key"]])


def train_tasks() -> list[Task]:
    return [_task("train", key, f"code of {key}?") for key in KEYS]


def validation_tasks() -> list[Task]:
    """Return tasks that request the same codes in different words."""
    return [_task("validation", key, f"{key}: code?") for key in KEYS]


def held_out_tasks() -> list[Task]:
    return [_task("held_out", key, f"of {key} code?") for key in KEYS]


def _task(split: str, key: str, question: str) -> Task:
    return Task(id=f"{split}-{key}", messages=({"role": "user", "content": question},), fields={"key": key})


def clerk_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    """Return answers of a policy that knows the format and the old codes."""
    rng = random.Random(f"log-{seed}")
    return [_clerk(task, rng) for task in rng.choices(train_tasks(), k=num)]


def _clerk(task: Task, rng: random.Random) -> list[Message]:
    key = task.fields["key"]
    code = OLD_CODES[key] if rng.random() < OLD_SHARE else rng.choice(DIGITS)
    return [*task.messages, {"role": "assistant", "content": f"{key} {code}"}]
