"""Telephone orders of a bell foundry, where the first word of a customer binds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Message, Task, Trajectory

NOTES = ["C", "D", "E", "F", "G", "A", "B"]
PLACES = ["Alten", "Bruck", "Clairs", "Doorn", "Essen", "Fauske", "Gmund", "Halle", "Ieper"]
FIRST_NUMBER = {"train": 100, "validation": 400, "held_out": 700}
SYSTEM = (
    "You take orders for a bell foundry. Ask for what you do not know yet: the note of the bell, then its weight in kilograms. The "
    "founders start at once, so the first note and the first weight that a customer names are binding: enter just these with "
    "enter_bell, also when the customer asks for something else later, and say that a change is not possible. An entry is final."
)


class Foundry(Environment):
    def reset(self, task: Task) -> None:
        self._says: list[str] = list(task.fields["says"])
        self._bell: dict[str, str | int] | None = None

    def reply(self, messages: Sequence[Message], session: Any) -> str | None:
        return self._says.pop(0) if self._says else None

    @tool
    def enter_bell(self, note: str, kilograms: int) -> str:
        """Enter the order. It cannot be changed afterwards.

        Args:
            note: note of the bell, one letter
            kilograms: weight of the bell
        """
        if self._bell is not None:
            raise ToolFailure("the order is entered already, and the founders have started")
        if note not in NOTES:
            raise ToolFailure(f"there is no note {note}; there are {', '.join(NOTES)}")
        if not 20 <= kilograms <= 900:
            raise ToolFailure("bells weigh 20 to 900 kilograms")
        self._bell = {"note": note, "kilograms": kilograms}
        return f"entered: a bell in {note} of {kilograms} kg"

    def final_state(self) -> dict[str, Any]:
        return {"bell": self._bell}


def reward(trajectory: Trajectory) -> float:
    """1 for the bell that is binding."""
    return float((trajectory.final_state or {}).get("bell") == trajectory.task.fields["state"]["bell"])


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"bells {split} {number}")
    note, kilograms = rng.choice(NOTES), 10 * rng.randint(3, 80)
    says = [f"It shall sound in {note}.", f"About the weight: {kilograms} kilograms."]
    if number % 3 == 1:
        says.append(f"Wait, could it sound in {rng.choice([one for one in NOTES if one != note])} instead?")
    elif number % 3 == 2:
        says.append(f"Wait, could it weigh {kilograms + 10 * rng.randint(1, 8)} kilograms instead?")
    says.append("I see. Thank you, goodbye.")
    text = f"Good morning, order {FIRST_NUMBER[split] + number}. We need a bell for the church of {rng.choice(PLACES)}."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": text}),
        fields={"says": says, "state": {"bell": {"note": note, "kilograms": kilograms}}},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
