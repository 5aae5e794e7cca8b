"""A kiosk without any tool: the customer asks, the policy answers, and the customer pays by what was said."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment
from sparring.types import Task, Trajectory

PRICES = {"paper": 3, "coffee": 2, "stamp": 1, "comic": 5, "umbrella": 12, "map": 7}


class Kiosk(Environment):
    def reset(self, task: Task) -> None:
        self.wishes = list(task.fields["wishes"])

    def reply(self, messages, session) -> str | None:
        if len(self.wishes) == 1:
            return None
        self.wishes.pop(0)
        return self.ask()

    def ask(self) -> str:
        num, thing = self.wishes[0]
        return f"And what do {num} of {thing} cost?"


def _sums(trajectory: Trajectory) -> list[int | None]:
    said = [m.get("content") or "" for m in trajectory.messages if m["role"] == "assistant"]
    found = [re.fullmatch(r"\s*(\d{1,6})\s*", text) for text in said]
    return [int(match[1]) if match else None for match in found]


def reward(trajectory: Trajectory) -> float:
    """The share of the questions that were answered right."""
    wanted = trajectory.task.fields["sums"]
    return sum(a == b for a, b in zip(_sums(trajectory), wanted)) / len(wanted)


def scorer(trajectory: Trajectory) -> float:
    return float(_sums(trajectory) == trajectory.task.fields["sums"])


def visits(split: str, num: int) -> list[Task]:
    rng = random.Random(f"kiosk-{split}")
    made = []
    for index in range(num):
        things = rng.sample(list(PRICES), 3)
        wishes = [[rng.randint(2, 20), thing] for thing in things]
        list_ = ", ".join(f"{thing} {price}" for thing, price in PRICES.items())
        text = f"Prices in euros: {list_}. Answer each question with the number only. What do {wishes[0][0]} of {wishes[0][1]} cost?"
        sums = [n * PRICES[thing] for n, thing in wishes]
        made.append(
            Task(
                id=f"kiosk-{split}-{index}",
                messages=({"role": "user", "content": text},),
                fields={"wishes": wishes, "sums": sums},
            )
        )
    return made


def train_tasks() -> list[Task]:
    return visits("train", 90)


def held_out_tasks() -> list[Task]:
    return visits("held_out", 30)
