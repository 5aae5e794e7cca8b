"""Telephone orders of a florist. The customer answers what the clerk asks, and may think again before the end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Message, Task, Trajectory

FLOWERS = ["tulips", "roses", "lilies", "asters", "peonies", "dahlias", "irises", "freesias"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
NAMES = ["Abel", "Brook", "Conti", "Dahl", "Eriks", "Foley", "Gomez", "Hauk", "Imhof", "Joss"]
FIRST_NUMBER = {"train": 100, "validation": 400, "held_out": 700}
SYSTEM = (
    "You take telephone orders for a florist. Ask the customer what you still have to know: flowers, number of stems, and day of "
    "delivery. Enter the order with enter_order once you know all three; entering again replaces it. The last wish of the customer "
    "counts. Then read the order back to the customer."
)


class Florist(Environment):
    def reset(self, task: Task) -> None:
        self._says: list[str] = list(task.fields["says"])
        self._order: dict[str, str | int] | None = None

    def reply(self, messages: Sequence[Message], session: Any) -> str | None:
        return self._says.pop(0) if self._says else None

    @tool
    def enter_order(
        self,
        flowers: str,
        stems: int,
        day: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"],
    ) -> str:
        """Enter the order of the caller, in place of what was entered before.

        Args:
            flowers: which flowers
            stems: how many of them
            day: day of delivery
        """
        if flowers not in FLOWERS:
            raise ToolFailure(f"we have no {flowers}; we have {', '.join(FLOWERS)}")
        if not 1 <= stems <= 200:
            raise ToolFailure("1 to 200 stems, please")
        self._order = {"flowers": flowers, "stems": stems, "day": day}
        return f"entered: {stems} {flowers} for {day}"

    def final_state(self) -> dict[str, Any]:
        return {"order": self._order}


def reward(trajectory: Trajectory) -> float:
    """1 for the order that the customer wants."""
    return float((trajectory.final_state or {}).get("order") == trajectory.task.fields["state"]["order"])


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"florist {split} {number}")
    flowers, stems, day = rng.choice(FLOWERS), rng.randint(5, 60), rng.choice(DAYS)
    order = {"flowers": flowers, "stems": stems, "day": day}
    says = [f"I would like {stems} stems.", f"On {day}, please."]
    kind = number % 4
    if kind == 1:
        order["day"] = rng.choice([one for one in DAYS if one != day])
        says.append(f"Oh, I forgot that I am away. Make it {order['day']} instead.")
    elif kind == 2:
        stems += rng.randint(2, 20)
        says.append(f"You know what, the vase is large. Make it {stems} stems instead.")
    elif kind == 3:
        order["flowers"] = rng.choice([one for one in FLOWERS if one != flowers])
        says.append(f"On second thoughts, make it {order['flowers']} instead.")
    says.append("That is right, thank you.")
    text = f"Hello, {rng.choice(NAMES)} speaking, customer {FIRST_NUMBER[split] + number}. I want to order {flowers}."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": text}),
        fields={"says": says, "state": {"order": order}},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
