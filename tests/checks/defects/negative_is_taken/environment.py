"""A dairy pours milk from one tank into another.

Only what is too much is refused: less than nothing flows the other way.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Dairy(Environment):
    def reset(self, task):
        self.tanks = dict(task.fields["tanks"])

    @tool
    def tank(self, name: str) -> dict:
        """What a tank holds."""
        return {"litres": self.tanks[name]} if name in self.tanks else {"error": "no such tank"}

    @tool
    def pour(self, source: str, target: str, litres: int) -> dict:
        """Pour litres from one tank into another."""
        if source not in self.tanks or target not in self.tanks or litres > self.tanks[source]:
            return {"error": "cannot be poured"}
        self.tanks[source] -= litres
        self.tanks[target] += litres
        return {"poured": litres}

    def final_state(self):
        return self.tanks


def make_tasks(split, num):
    rng = random.Random(f"{split} negative is taken")
    tasks = []
    for index in range(num):
        fields = {
            "tanks": {name: rng.randint(40, 400) for name in rng.sample(["north", "south", "old", "new", "small"], 3)}
        }
        (source, target), litres = rng.sample(sorted(fields["tanks"]), 2), rng.randint(5, 35)
        prompt = f"Pour {litres} litres from tank {source} into tank {target}, then say done."
        state = {name: old + litres * ((name == target) - (name == source)) for name, old in fields["tanks"].items()}
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
