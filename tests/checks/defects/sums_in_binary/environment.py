"""A post office adds up postage.

The sum is one of binary fractions, and compared with a decimal one.
"""

import random
from functools import partial
from typing import Literal

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Postage(Environment):
    def reset(self, task):
        self.paid = {"letters": 0.0, "parcels": 0.0}

    @tool
    def stamp(self, kind: Literal["letters", "parcels"], euros: float) -> dict:
        """Pay postage for a letter or a parcel."""
        self.paid[kind] += euros
        return {"paid": euros}

    @tool
    def sums(self) -> dict:
        """Postage of the day by kind."""
        return {kind: f"{euros:.2f}" for kind, euros in self.paid.items()}

    def final_state(self):
        return {"paid": self.paid}


def make_tasks(split, num):
    rng = random.Random(f"{split} sums in binary")
    tasks = []
    for index in range(num):
        cents = [rng.randint(80, 990) for _ in range(4)]
        fields = {"counter": rng.randint(1, 9999)}
        euros = ", ".join(f"{one / 100:.2f}" for one in cents)
        prompt = f"Counter {fields['counter']}: stamp letters for {euros} euros. Then say done."
        state = {"paid": {"letters": sum(cents) / 100, "parcels": 0.0}}
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
