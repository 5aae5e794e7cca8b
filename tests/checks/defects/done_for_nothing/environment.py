"""A kennel writes down which dog got its food.

A name that no dog has is answered as if it had been fed.
"""

import random
import sqlite3
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

DOGS = ["Rex", "Bella", "Milo", "Luna", "Otto", "Nala"]


class Kennel(Environment):
    def reset(self, task):
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE dogs (name TEXT PRIMARY KEY, bowls INTEGER)")
        self.database.executemany("INSERT INTO dogs VALUES (?, ?)", task.fields["dogs"].items())

    @tool
    def dogs(self) -> list:
        """Names of all dogs."""
        return [name for (name,) in self.database.execute("SELECT name FROM dogs ORDER BY name")]

    @tool
    def feed(self, dog: str, bowls: int) -> str:
        """Write down how many bowls a dog got today."""
        self.database.execute("UPDATE dogs SET bowls = ? WHERE name = ?", (bowls, dog))
        return f"{dog} is fed"

    def final_state(self):
        return dict(self.database.execute("SELECT name, bowls FROM dogs").fetchall())

    def close(self):
        self.database.close()


def make_tasks(split, num):
    rng = random.Random(f"{split} done for nothing")
    tasks = []
    for index in range(num):
        fields = {"dogs": dict.fromkeys(sorted(rng.sample(DOGS, 4)), 0)}
        dog, bowls = rng.choice(sorted(fields["dogs"])), rng.randint(1, 3)
        prompt = f"{dog} got {bowls} bowls. Write it down, then say done."
        state = {**fields["dogs"], dog: bowls}
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
