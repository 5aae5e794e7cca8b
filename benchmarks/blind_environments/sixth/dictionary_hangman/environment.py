"""Hangman over a small dictionary: guess letters until the word is open."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

WORDS = """anchor basket candle dragon engine forest garden hammer island jacket kettle ladder magnet needle orange
pepper quiver rabbit saddle tunnel velvet walnut yellow zipper bridge copper donkey falcon ginger hollow""".split()
LIVES = 6


class Hangman(Environment):
    """Ends when the word is open or the lives are used up."""

    def reset(self, task: Task):
        self.word = task.fields["word"]
        self.guessed: set[str] = set()
        self.lives = LIVES
        return [
            {
                "role": "user",
                "content": f"Hangman. The word has {len(self.word)} letters: {self.shown()}. Guess one letter at a time. "
                f"You have {LIVES} lives; each wrong letter costs one.",
            }
        ]

    def shown(self) -> str:
        return " ".join(letter if letter in self.guessed else "_" for letter in self.word)

    @tool
    def guess(self, letter: str) -> str:
        """Guess a letter of the word.

        Args:
            letter: one letter from a to z
        """
        letter = letter.strip().lower()
        if not letter.isalpha():
            return f"That is no letter. {self.shown()}"
        if self.guessed.issuperset(letter):
            return f"You had that before. {self.shown()}"
        self.guessed.update(letter)
        if not any(one in self.word for one in letter):
            self.lives -= 1
            return f"Wrong, {self.lives} lives left. {self.shown()}"
        return f"Right. {self.shown()}"

    @property
    def is_open(self) -> bool:
        return set(self.word) <= self.guessed

    @property
    def is_done(self) -> bool:
        return self.is_open or self.lives <= 0

    def final_state(self) -> dict:
        return {"open": self.is_open, "lives": self.lives}


def reward(trajectory: Trajectory) -> float:
    """1 for a word opened without a loss of lives, a tenth less for each life lost."""
    state = trajectory.final_state
    if not state or not state["open"]:
        return 0.0
    return 1.0 - 0.1 * (LIVES - state["lives"])


def scorer(trajectory: Trajectory) -> float:
    return float(bool(trajectory.final_state and trajectory.final_state["open"]))


def _split(words: list[str], name: str) -> list[Task]:
    # The opening message is written by reset.
    return [Task(id=f"{name}-{word}", messages=(), fields={"word": word}) for word in words]


_shuffled = random.Random(3).sample(WORDS, len(WORDS))


def train_tasks() -> list[Task]:
    return _split(_shuffled[:22], "train")


def held_out_tasks() -> list[Task]:
    return _split(_shuffled[22:], "held_out")
