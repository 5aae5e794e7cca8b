"""Mastermind in four digits, without any tools: the environment replies as the other player does. Fewer guesses earn more."""

from __future__ import annotations

import random
import re
from collections import Counter

from sparring.environments import Environment
from sparring.types import Task, Trajectory

ROUNDS = 8
INTRO = (
    "I have set a lock of three digits, each 1 to 4. Guess with three digits alone, such as 1 2 2. After each guess I say how many digits "
    f"are right in place (hits) and how many are right elsewhere (near). You have {ROUNDS} guesses; fewer earn more."
)


def compare(code: str, guess: str) -> tuple[int, int]:
    hits = sum(a == b for a, b in zip(code, guess, strict=True))
    return hits, sum((Counter(code) & Counter(guess)).values()) - hits


def guess_in(text: str) -> str | None:
    digits = re.sub(r"\s", "", text)
    return digits if re.fullmatch(r"[1-4]{3}", digits) else None


class Lock(Environment):
    def reset(self, task: Task) -> None:
        self.code: str = task.fields["code"]
        self.num_guesses = 0

    def reply(self, messages, session) -> str | None:
        self.num_guesses += 1
        guess = guess_in(str(messages[-1].get("content") or ""))
        if guess == self.code or self.num_guesses >= ROUNDS:
            return None
        if guess is None:
            return "Three digits, each 1 to 4, please."
        hits, near = compare(self.code, guess)
        return f"{hits} hits, {near} near"


def reward(trajectory: Trajectory) -> float:
    guesses = [guess_in(str(m.get("content") or "")) for m in trajectory.messages if m["role"] == "assistant"]
    if trajectory.task.fields["code"] not in guesses:
        return 0.0
    return 1.0 - 0.1 * guesses.index(trajectory.task.fields["code"])


def scorer(trajectory: Trajectory) -> float:
    last = trajectory.messages[-1]
    return float(
        last["role"] == "assistant" and "".join(str(last.get("content")).split()) == trajectory.task.fields["code"]
    )


def locks(split: str) -> list[Task]:
    codes = [f"{n:03d}" for n in range(111, 445) if re.fullmatch(r"[1-4]{3}", f"{n:03d}")]
    random.Random("locks").shuffle(codes)
    part = {"train": slice(0, 40), "validation": slice(40, 50), "held_out": slice(50, 64)}[split]
    return [
        Task(id=f"{split}-{n}", messages=({"role": "user", "content": INTRO},), fields={"code": code})
        for n, code in enumerate(codes[part])
    ]


def train_tasks() -> list[Task]:
    return locks("train")


def validation_tasks() -> list[Task]:
    return locks("validation")


def held_out_tasks() -> list[Task]:
    return locks("held_out")
