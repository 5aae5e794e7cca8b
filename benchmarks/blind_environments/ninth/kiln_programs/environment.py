"""Kilns of a pottery: set the program that a batch of ware needs."""

from __future__ import annotations

import random
from typing import Annotated, Any

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

PEAKS = {"raku": (960, 1000), "earthenware": (1020, 1100), "porcelain": (1270, 1310), "stoneware": (1180, 1240)}
"""Range of the peaks of each clay, in degrees Celsius."""
FIRST_NUMBER = {"train": 300, "validation": 600, "held_out": 900}


class Kilns(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self._sheets: dict[str, dict[str, int]] = task.fields["sheets"]
        self._kilns = {kiln: dict(program) for kiln, program in task.fields["kilns"].items()}

    @tool
    def firing_sheet(self, clay: str) -> dict[str, int]:
        """How a clay is fired: peak in degrees Celsius, and minutes for which the peak is held.

        Args:
            clay: name of the clay
        """
        if clay not in self._sheets:
            raise ToolFailure(f"there is no sheet for {clay}; there are {', '.join(self._sheets)}")
        return self._sheets[clay]

    @tool
    def set_program(
        self,
        kiln: str,
        peak: Annotated[int, Bounded(ge=600, le=1250)],
        hold: Annotated[int, Bounded(ge=0, le=90)],
    ) -> str:
        """Set the program of a kiln.

        Args:
            kiln: name of the kiln
            peak: degrees Celsius
            hold: minutes at the peak
        """
        if kiln not in self._kilns:
            raise ToolFailure(f"there is no kiln {kiln}")
        self._kilns[kiln] = {"peak": peak, "hold": hold}
        return f"kiln {kiln}: {peak} degrees for {hold} minutes"

    @tool
    def show_program(self, kiln: str) -> dict[str, int]:
        """Program of a kiln, as it is set now.

        Args:
            kiln: name of the kiln
        """
        if kiln not in self._kilns:
            raise ToolFailure(f"there is no kiln {kiln}")
        return self._kilns[kiln]

    def final_state(self) -> dict[str, Any]:
        return self._kilns


def reward(trajectory: Trajectory) -> float:
    """1 when each kiln has the right program."""
    return 1.0 if dict(trajectory.final_state or {}) == trajectory.task.fields["state"] else 0.0


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"kilns {split} {number}")
    sheets = {
        clay: {"peak": 5 * rng.randint(low // 5, high // 5), "hold": 5 * rng.randint(1, 8)}
        for clay, (low, high) in PEAKS.items()
    }
    kilns = {
        name: {"peak": 5 * rng.randint(140, 180), "hold": 5 * rng.randint(9, 12)}
        for name in sorted(rng.sample(["North", "South", "Old", "New", "Tall"], 3))
    }
    clay, kiln = list(PEAKS)[number % len(PEAKS)], rng.choice(list(kilns))
    text = (
        f"Batch {FIRST_NUMBER[split] + number} is {clay} and goes into the kiln {kiln}. Please set that kiln as the firing sheet says, "
        "leave the others as they are, and confirm."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"sheets": sheets, "kilns": kilns, "clay": clay, "state": kilns | {kiln: sheets[clay]}},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
