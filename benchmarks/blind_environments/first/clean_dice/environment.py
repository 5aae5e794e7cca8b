"""A dice game against a target: bank points before a one takes them away. Dice follow from the task's seed."""

import random
from functools import partial
from typing import Annotated

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.types import Task


class DiceTable(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.target = task.fields["target"]
        self.open_points = 0
        self.banked = 0

    @tool
    def roll(self, dice: Annotated[int, Bounded(ge=1, le=3)]) -> dict:
        """Roll dice. Their sum is added to the open points; if one of them shows 1, the open points are lost.

        Args:
            dice: how many
        """
        faces = [self.state.rng.randint(1, 6) for _ in range(dice)]
        self.open_points = 0 if 1 in faces else self.open_points + sum(faces)
        return {"faces": faces, "open": self.open_points, "banked": self.banked}

    @tool
    def bank(self) -> dict:
        """Move the open points to the bank, where they are safe."""
        self.banked += self.open_points
        self.open_points = 0
        return {"banked": self.banked, "target": self.target}

    @property
    def is_done(self):
        return self.banked >= self.target

    def final_state(self):
        return {"banked": self.banked}


def make_tasks(split, num):
    rng = random.Random(f"dice {split}")
    tasks = []
    for index in range(num):
        target = rng.randint(8, 16)
        table = rng.randint(1000, 9999)
        prompt = f"Table {table}. Bank at least {target} points. Roll dice, and bank before a 1 takes your open points."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"target": target},
                seed=rng.randint(0, 10**6),
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    banked = (trajectory.final_state or {}).get("banked", 0)
    return min(banked / trajectory.task.fields["target"], 1.0)


def scorer(trajectory):
    return float((trajectory.final_state or {"banked": 0})["banked"] >= trajectory.task.fields["target"])
