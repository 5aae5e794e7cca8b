"""Test bench for pumps: bring a pump to its working point. The bench refuses any other pressure, and says on which side."""

from __future__ import annotations

import random
from typing import Annotated, Any

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

PUMPS = ["gear", "vane", "screw", "lobe", "piston"]
TRIES = 7
FIRST_NUMBER = {"train": 100, "validation": 300, "held_out": 500}


class Bench(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self._points: dict[str, int] = task.fields["points"]
        self._tries = dict.fromkeys(self._points, 0)
        self._locked: dict[str, int] = {}

    @tool
    def lock(self, pump: str, bar: Annotated[int, Bounded(ge=1, le=100)]) -> str:
        """Lock a pump at its working point. At any other pressure the bench refuses, and says on which side the point lies.

        Args:
            pump: name of the pump
            bar: pressure
        """
        if pump not in self._points:
            raise ToolFailure(f"there is no pump {pump}; there are {', '.join(sorted(self._points))}")
        self._tries[pump] += 1
        if bar != self._points[pump]:
            raise ToolFailure("refused: the working point is " + ("higher" if self._points[pump] > bar else "lower"))
        self._locked[pump] = bar
        return f"the {pump} pump is locked at {bar} bar"

    @property
    def is_done(self) -> bool:
        return bool(self._locked) or TRIES in self._tries.values()

    def final_state(self) -> dict[str, Any]:
        return {"locked": self._locked}


def reward(trajectory: Trajectory) -> float:
    """1 when the pump, and no other, is locked at its working point."""
    return float((trajectory.final_state or {}) == trajectory.task.fields["state"])


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"bench {split} {number}")
    points = {pump: rng.randint(1, 100) for pump in rng.sample(PUMPS, 3)}
    pump = rng.choice(list(points))
    text = (
        f"Bench order {FIRST_NUMBER[split] + number}: please lock the {pump} pump at its working point, which nobody has written down; it "
        f"is a whole number from 1 to 100 bar. Leave the other pumps alone. You have {TRIES} tries, and the bench is "
        "switched off once a pump is locked or was tried so often."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"points": points, "pump": pump, "state": {"locked": {pump: points[pump]}}},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
