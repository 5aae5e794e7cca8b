from __future__ import annotations

import itertools
import random

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task

DIGITS = "1234"
LENGTH = 3
MOST_GUESSES = 8

TEXT = """Find my secret: three digits from 1 to 4, repetitions allowed, whose sum is {sum}. Each guess is answered with the number of \
digits in the right place. You have eight guesses; the game ends with the right one or the eighth."""


class Codebreaker(Environment):
    """The game ends itself; there is no answer to write."""

    def reset(self, task: Task) -> None:
        self._secret: str = task.fields["secret"]
        self._guesses: list[str] = []

    @tool
    def guess(self, digits: str) -> str:
        """Guess the secret.

        Args:
            digits: three of them, each from 1 to 4, for example 112
        """
        if len(digits) != LENGTH or not set(digits) <= set(DIGITS):
            raise ToolFailure("a guess is three digits from 1 to 4")
        self._guesses.append(digits)
        places = sum(one == other for one, other in zip(digits, self._secret, strict=True))
        if places == LENGTH:
            return f"Right, in guess {len(self._guesses)}."
        if len(self._guesses) == MOST_GUESSES:
            return f"{places} right. That was the last guess."
        return f"{places} right"

    @property
    def is_done(self) -> bool:
        return self._secret in self._guesses or len(self._guesses) >= MOST_GUESSES

    def final_state(self) -> dict[str, list[str]]:
        return {"guesses": self._guesses}


def reward(trajectory) -> float:
    """1 for the secret in the first guesses, a little less for each further one, never below 0.5; 0 without it."""
    guesses = [step["arguments"]["digits"] for step in trajectory.transitions if step["error"] is None]
    secret = trajectory.task.fields["secret"]
    if secret not in guesses:
        return 0.0
    return 1.0 - 0.5 * guesses.index(secret) / MOST_GUESSES


def scorer(trajectory) -> float:
    """Found or not, from what the environment kept."""
    state = trajectory.final_state or {"guesses": []}
    return 1.0 if trajectory.task.fields["secret"] in state["guesses"] else 0.0


ALL = ["".join(secret) for secret in itertools.product(DIGITS, repeat=LENGTH)]


def _split() -> tuple[list[str], list[str]]:
    """Secrets to train on and secrets held out; sums of which there is only one secret (3 and 12) are left out."""
    shuffled = random.Random(3).sample([secret for secret in ALL if secret not in ("111", "444")], len(ALL) - 2)
    return shuffled[:40], shuffled[40:60]


def _tasks(split: str, secrets: list[str]) -> list[Task]:
    return [
        Task(
            id=f"{split}-{secret}",
            messages=({"role": "user", "content": f"Game {number}. " + TEXT.format(sum=sum(map(int, secret)))},),
            fields={"secret": secret},
        )
        for number, secret in zip(random.Random(split).sample(range(100, 1000), len(secrets)), secrets, strict=True)
    ]


def train_tasks() -> list[Task]:
    return _tasks("train", _split()[0])


def held_out_tasks() -> list[Task]:
    return _tasks("held", _split()[1])
