"""A caretaker collects complaints of flats.

Of each flat only one is kept.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Complaints(Environment):
    def reset(self, task):
        self.log = {}
        self.desk = task.fields["desk"]

    @tool
    def complaints(self, flat: str) -> list:
        """Complaints of a flat."""
        return [self.log[flat]] if flat in self.log else []

    @tool
    def add_complaint(self, flat: str, text: str) -> str:
        """Add a complaint of a flat."""
        self.log[flat] = text
        return "added"

    def final_state(self):
        return {"complaints": {flat: [text] for flat, text in self.log.items()}}


def make_tasks(split, num):
    rng = random.Random(f"{split} d second replaces")
    tasks = []
    for index in range(num):
        fields = {"desk": rng.randint(1, 10**6)}
        flat, a, b = f"{rng.randint(1, 9)}B", rng.choice(["noise", "mould"]), rng.choice(["smell", "cold"])
        prompt = f"Flat {flat} complains of {a}, and of {b}. Add both. Then say done."
        state = {"complaints": {flat: [a, b]}}
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
