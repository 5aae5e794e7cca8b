"""A garage whose prompt shows an argument that the tool does not have."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Garage(Environment):
    def reset(self, task):
        self.bays = task.fields["bays"]

    @tool
    def bays_of(self, level: str, *, most: int | None = None) -> list:
        """Free bays of a level.

        Args:
            level: such as L1
            most: how many
        """
        return self.bays.get(level, [])[: most or 3]


def make_tasks(split, num):
    rng = random.Random(f"garage {split}")
    tasks = []
    for index in range(num):
        bays = {f"L{level}": [f"B{number}" for number in rng.sample(range(100, 999), 5)] for level in (1, 2, 3)}
        level = rng.choice(sorted(bays))
        message = {
            "role": "user",
            "content": f"Car {rng.randint(100, 999)} comes: which is the first free bay? Call bays_of(floor={level}).",
        }
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields={"bays": bays, "answer": bays[level][0]}))
    return tasks


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 24)
held_out_tasks = partial(make_tasks, "held_out", 8)
