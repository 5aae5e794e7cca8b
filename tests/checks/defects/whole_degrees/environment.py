"""Rooms are heated to a temperature.

Half degrees are lost.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Heating(Environment):
    def reset(self, task):
        self.rooms = dict(task.fields["rooms"])

    @tool
    def temperature(self, room: str) -> dict:
        """Set temperature of a room in degrees."""
        return {"room": room, "celsius": self.rooms[room]}

    @tool
    def set_temperature(self, room: str, celsius: float) -> str:
        """Set the temperature of a room in degrees."""
        if room not in self.rooms:
            return "unknown room"
        self.rooms[room] = int(celsius)
        return "set"

    def final_state(self):
        return self.rooms


def make_tasks(split, num):
    rng = random.Random(f"{split} d rounds")
    tasks = []
    for index in range(num):
        fields = {"rooms": {room: rng.randint(15, 22) for room in rng.sample(["hall", "kitchen", "study", "attic"], 3)}}
        room = rng.choice(sorted(fields["rooms"]))
        degrees = rng.randint(30, 46) / 2
        prompt = f"Set the {room} to {degrees} degrees. Then say done."
        state = {**fields["rooms"], room: degrees}
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
