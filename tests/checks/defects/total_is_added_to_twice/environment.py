"""A caterer plans dishes with their numbers.

The sum grows by each number that is set, whatever was there before.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

DISHES = ["soup", "salad", "pie", "curry", "cake"]


class Caterer(Environment):
    def reset(self, task):
        self.plates = dict(task.fields["plates"])
        self.sum = sum(self.plates.values())

    @tool
    def plan(self) -> dict:
        """Plates of each dish, and of all."""
        return {"plates": self.plates, "sum": self.sum}

    @tool
    def set_plates(self, dish: str, plates: int) -> str:
        """Set how many plates of a dish there will be."""
        if dish not in self.plates:
            return "no such dish"
        self.plates[dish] = plates
        self.sum += plates
        return "planned"

    def final_state(self):
        return {"plates": self.plates, "sum": self.sum}


def make_tasks(split, num):
    rng = random.Random(f"{split} total is added to twice")
    tasks = []
    for index in range(num):
        fields = {"plates": dict.fromkeys(rng.sample(DISHES, 3), 0)}
        fields["plates"][rng.choice(sorted(fields["plates"]))] = rng.randint(20, 60)
        dish, plates = next(dish for dish, number in fields["plates"].items() if not number), rng.randint(10, 90)
        prompt = f"We need {plates} plates of {dish}. Plan them, then say done."
        state = {"plates": {**fields["plates"], dish: plates}, "sum": sum(fields["plates"].values()) + plates}
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
