"""A caretaker's round: how much heat did a house use in all its flats?"""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Reward, Task, Trajectory

STREETS = ["Elm Street", "Quay Road", "Mill Lane", "Park Row", "Castle Hill", "Station Road"]
FIRST_NUMBER = {"train": 100, "validation": 300, "held_out": 500}
CALL_COST = 0.15
"""Calls take the caretaker's time, so that none should be made in vain."""


class House(Environment):
    def reset(self, task: Task) -> None:
        self._flats: dict[str, dict[str, int]] = task.fields["flats"]

    @tool
    def list_flats(self) -> list[str]:
        """All flats of the house."""
        return list(self._flats)

    @tool
    def read_meter(self, flat: str) -> dict[str, int]:
        """Heat meter of a flat, in kilowatt-hours: at the start of the year and at its end.

        Args:
            flat: as list_flats names it
        """
        if flat not in self._flats:
            raise ToolFailure(f"there is no flat {flat}")
        return self._flats[flat]


CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)


def final_answer(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message. Code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", str(last.get("content") or ""))
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> Reward:
    """1 for the right number of kilowatt-hours, less a little for each call."""
    accuracy = float(final_answer(trajectory) == trajectory.task.fields["answer"])
    cost = -CALL_COST * len(trajectory.transitions)
    return Reward(total=accuracy + cost, components={"accuracy": accuracy, "calls": cost})


scorer = exact_match("answer", "answer")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"round {split} {number}")
    names = [f"{floor}{side}" for floor in range(1, 8) for side in "LR"][: rng.randint(7, 10)]
    flats = {}
    for name in names:
        start = rng.randint(1000, 9000)
        flats[name] = {"start": start, "end": start + rng.randint(150, 900)}
    used = sum(meter["end"] - meter["start"] for meter in flats.values())
    text = (
        f"House {FIRST_NUMBER[split] + number}, {rng.choice(STREETS)}: please read the heat meters of all flats. How many "
        "kilowatt-hours did the house use in the year? End with the number, as in <answer>3120</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"flats": flats, "answer": str(used)},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
