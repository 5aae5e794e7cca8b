"""A marina moors boats.

The berth is written to the row that follows in the sorted list.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

BOATS = ["Albatros", "Brise", "Calypso", "Delfin", "Esprit", "Fortuna"]


class Marina(Environment):
    def reset(self, task):
        self.boats = [dict(boat) for boat in task.fields["boats"]]

    @tool
    def boats_moored(self) -> list:
        """All boats with their berths."""
        return self.boats

    @tool
    def berth_of(self, boat: str) -> str:
        """Berth of a boat."""
        return next((one["berth"] for one in self.boats if one["boat"] == boat), "no such boat")

    @tool
    def moor(self, boat: str, berth: str) -> str:
        """Move a boat to another berth."""
        names = sorted(one["boat"] for one in self.boats)
        if boat not in names:
            return "no such boat"
        self.boats[names.index(boat)]["berth"] = berth
        return f"{boat} lies at {berth}"

    def final_state(self):
        return {one["boat"]: one["berth"] for one in self.boats}


def make_tasks(split, num):
    rng = random.Random(f"{split} writes to the next row")
    tasks = []
    for index in range(num):
        names = rng.sample(BOATS, 4)
        fields = {"boats": [{"boat": name, "berth": f"{rng.choice('ABC')}{rng.randint(1, 30)}"} for name in names]}
        boat, berth = rng.choice(names), f"D{rng.randint(1, 30)}"
        prompt = f"Move {boat} to berth {berth}, then say done."
        state = {one["boat"]: berth if one["boat"] == boat else one["berth"] for one in fields["boats"]}
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
