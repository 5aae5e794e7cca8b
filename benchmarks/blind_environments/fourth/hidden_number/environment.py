"""A guessing game: higher, lower, correct."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

HIGHEST = 63
GUESSES = 6

PROMPT = (
    f"I think of a whole number from 1 to {HIGHEST}. Find it with the tool guess; you have {GUESSES} guesses, and the game ends "
    "with the right one or with the last one."
)


class HiddenNumber(Environment):
    def reset(self, task):
        self.number = task.fields["number"]
        self.turn = 1
        self.is_found = False

    @tool
    def guess(self, number: int) -> str:
        """Guess the number; says whether the hidden one is higher or lower."""
        if self.is_done:
            return "the game is over"
        if self.is_done:
            return "the game is over"
        self.turn += 1
        self.is_found = number == self.number
        if self.is_found:
            return "correct"
        return "higher" if self.number > number else "lower"

    @property
    def is_done(self):
        return self.is_found or self.turn >= GUESSES

    def final_state(self):
        return {"found": self.is_found}


def _numbers():
    return random.Random("numbers").sample(range(1, HIGHEST + 1), HIGHEST)


def _tasks(split, numbers):
    return [
        Task(id=f"{split}-{number}", messages=({"role": "user", "content": PROMPT},), fields={"number": number})
        for number in numbers
    ]


def train_tasks():
    return _tasks("train", _numbers()[:40])


def validation_tasks():
    return _tasks("validation", _numbers()[40:47])


def held_out_tasks():
    return _tasks("held-out", _numbers()[47:])


def reward(trajectory):
    results = [step["result"] for step in trajectory.transitions if step["error"] is None]
    return 1.0 if "correct" in results else 0.0


def scorer(trajectory):
    return 1.0 if trajectory.final_state == {"found": True} else 0.0
