"""A greenhouse sets its lamps.

Half of the tasks want a lamp dimmed, which the schema does not offer.
"""

import random
from functools import partial
from typing import Literal

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

BEDS = ["tomato", "pepper", "basil", "melon", "fig"]
LEVELS = ["bright", "dimmed", "dark"]


class Greenhouse(Environment):
    def reset(self, task):
        self.lamps = {bed: {"level": level} for bed, level in task.fields["beds"].items()}

    @tool
    def lamps_of_beds(self) -> dict:
        """The lamps of all beds."""
        return self.lamps

    @tool
    def switch(self, bed: str, level: Literal["bright", "dark", "night"]) -> str:
        """Switch the lamp of a bed to a level."""
        if bed not in self.lamps:
            return f"error: there is no bed {bed}"
        self.lamps[bed]["level"] = level
        return f"{bed}: {level}"

    def final_state(self):
        return {"lamps": self.lamps}


def make_tasks(split, num):
    rng = random.Random(f"{split} value ruled out")
    tasks = []
    for index in range(num):
        beds = {bed: rng.choice(LEVELS) for bed in rng.sample(BEDS, 3)}
        bed = rng.choice(sorted(beds))
        level = rng.choice([one for one in LEVELS if one != beds[bed]])
        prompt = f"The lamp over the {bed} bed should be {level}. Say done then. Slip {split}-{index}."
        state = {"lamps": {one: {"level": level if one == bed else old} for one, old in beds.items()}}
        fields = {"beds": beds, "state": state}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return tasks


train_tasks = partial(make_tasks, "train", 20)
validation_tasks = partial(make_tasks, "validation", 6)
held_out_tasks = partial(make_tasks, "held_out", 6)
scorer = state_difference("state")


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])
