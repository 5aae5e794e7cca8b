"""A garage lets cars in and out.

The number of cars goes down when one leaves, and never up.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Garage(Environment):
    def reset(self, task):
        self.cars = list(task.fields["cars"])
        self.number = len(self.cars)

    @tool
    def cars_parked(self) -> list:
        """Plates of all cars."""
        return sorted(self.cars)

    @tool
    def how_many(self) -> int:
        """How many cars are parked."""
        return self.number

    @tool
    def enter(self, plate: str) -> str:
        """Let a car in."""
        if plate in self.cars:
            return "is parked already"
        self.cars.append(plate)
        return "welcome"

    @tool
    def leave(self, plate: str) -> str:
        """Let a car out."""
        if plate not in self.cars:
            return "is not parked here"
        self.cars.remove(plate)
        self.number -= 1
        return "bye"

    def final_state(self):
        return {"cars": sorted(self.cars)}


def make_tasks(split, num):
    rng = random.Random(f"{split} d count not updated")
    tasks = []
    for index in range(num):
        cars = [f"M-{n}" for n in rng.sample(range(100, 999), rng.randint(4, 7))]
        fields = {"cars": cars[1:]}
        prompt = f"Let {cars[0]} in and {cars[1]} out. Then say done."
        state = {"cars": sorted([cars[0], *cars[2:]])}
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={**fields, "state": state},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 20)
validation_tasks = partial(make_tasks, "validation", 6)
held_out_tasks = partial(make_tasks, "held_out", 6)
scorer = state_difference("state")


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])
