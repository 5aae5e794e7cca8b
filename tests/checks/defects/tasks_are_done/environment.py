"""Lamps to be switched on, of which half are on already: what a task asks for is drawn without a look at what is there."""

import random

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Lamps(Environment):
    def reset(self, task):
        self.lamps = dict(task.fields["lamps"])

    @tool
    def switch(self, lamp: str, to: bool) -> str:
        """Switch a lamp on or off."""
        if lamp not in self.lamps:
            raise ValueError("there is no such lamp")
        self.lamps[lamp] = to
        return "switched"

    def final_state(self):
        return self.lamps


def tasks(split, num):
    rng, found = random.Random(f"lamps {split}"), []
    for index in range(num):
        lamps = {room: rng.random() < 0.5 for room in ("attic", "cellar", "garage", "hall")}
        lamp, to = rng.choice(sorted(lamps)), rng.random() < 0.5
        prompt = f"Case {split}-{index}: switch {lamp} {'on' if to else 'off'}."
        fields = {"lamps": lamps, "state": {**lamps, lamp: to}}
        found.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return found


def train_tasks():
    return tasks("train", 40)


def held_out_tasks():
    return tasks("held_out", 10)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
