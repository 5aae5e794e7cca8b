"""A nursery keeps a note on each bed.

What is written down is cut to ASCII.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

BEDS = ["north wall", "pond", "cold frame", "terrace", "hedge"]
NOTES = ["water twice a week", "no lime here", "cut back in March"]


class Nursery(Environment):
    def reset(self, task):
        self.notes = dict(task.fields["notes"])

    @tool
    def beds(self) -> list:
        """All beds."""
        return sorted(self.notes)

    @tool
    def note_of(self, bed: str) -> str:
        """The note on a bed."""
        return self.notes.get(bed, "no such bed")

    @tool
    def write_note(self, bed: str, note: str) -> str:
        """Write the note on a bed."""
        if bed not in self.notes:
            return "no such bed"
        self.notes[bed] = note.encode("ascii", "ignore").decode()
        return "noted"

    def final_state(self):
        return self.notes


def make_tasks(split, num):
    rng = random.Random(f"{split} notes lose accents")
    tasks = []
    for index in range(num):
        beds = rng.sample(BEDS, 3)
        fields = {"notes": {bed: rng.choice(NOTES) for bed in beds}}
        note = f"soil test {rng.randint(10, 99)} on Friday"
        prompt = f"Write the note '{note}' on the bed '{beds[0]}'. Then say done."
        state = {**fields["notes"], beds[0]: note}
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
