"""A lift shaft: the panel names the gates of the floor below."""

import random
from functools import partial
from typing import Literal

from sparring.environments import Environment, tool
from sparring.types import Task

GATES = ["red", "green", "blue", "yellow"]


class Shaft(Environment):
    def reset(self, task):
        self.gates = task.fields["gates"]
        self.floor = 1

    @tool
    def panel(self) -> dict:
        """The gates of this floor that open."""
        return {"gates": self.gates[self.floor - 1]}

    @tool
    def through(self, gate: Literal["red", "green", "blue", "yellow"]) -> str:
        """Walk through a gate and up to the next floor."""
        if gate not in self.gates[self.floor]:
            return "This gate is locked."
        self.floor += 1
        return "You climb the stairs."

    @property
    def is_done(self):
        return self.floor == 4

    def final_state(self):
        return {"floor": self.floor}


def make_tasks(split, num):
    rng = random.Random(f"shaft {split}")
    return [
        Task(
            id=f"{split}-{index}",
            messages=({"role": "user", "content": "Climb to the fourth floor."},),
            fields={"gates": [sorted(rng.sample(GATES, 2)) for _ in range(6)]},
        )
        for index in range(num)
    ]


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float((trajectory.final_state or {}).get("floor") == 4)


scorer = reward
