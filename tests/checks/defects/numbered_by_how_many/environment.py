"""A lost property office gives each thing a number.

The number follows from how many things there are, so that it is given again after one was handed out.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

THINGS = ["umbrella", "glove", "scarf", "wallet", "hat", "phone", "ring"]


class LostProperty(Environment):
    def reset(self, task):
        self.things = dict(enumerate(task.fields["things"], start=1))

    @tool
    def things_kept(self) -> dict:
        """Things by number."""
        return {str(number): thing for number, thing in self.things.items()}

    @tool
    def register(self, thing: str) -> dict:
        """Register a thing that was found."""
        number = len(self.things) + 1
        self.things[number] = thing
        return {"number": number, "thing": thing}

    @tool
    def hand_out(self, number: int) -> dict:
        """Give a thing back to its owner."""
        if number not in self.things:
            return {"error": "no such number"}
        return {"handed_out": self.things.pop(number)}

    def final_state(self):
        return {"kept": sorted(self.things.values())}


def make_tasks(split, num):
    rng = random.Random(f"{split} numbered by how many")
    tasks = []
    for index in range(num):
        *things, new = rng.sample(THINGS, rng.randint(4, 6))
        old = rng.choice(things[:-1])
        fields = {"things": things}
        prompt = f"Hand out the {old}. Then register the {new} that was found. Then say done."
        state = {"kept": sorted({*things, new} - {old})}
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
