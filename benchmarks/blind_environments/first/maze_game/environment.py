"""A text game: walk through a small cave to the lamp."""

import random
from functools import partial
from typing import Literal

from sparring.environments import Environment, tool
from sparring.types import Task

STEPS = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}
NAMES = {(0, 1): "north", (0, -1): "south", (1, 0): "east", (-1, 0): "west"}


class Maze(Environment):
    def reset(self, task):
        self.rooms = {tuple(room) for room in task.fields["rooms"]}
        self.here = tuple(task.fields["start"])
        self.lamp = tuple(task.fields["lamp"])

    @tool
    def look(self) -> dict:
        """The exits of this room."""
        x, y = self.here
        exits = [name for (dx, dy), name in NAMES.items() if (x + dx, y + dy) in self.rooms]
        return {"exits": sorted(exits), "lamp": self.here == self.lamp}

    @tool
    def go(self, direction: Literal["north", "south", "east", "west"]) -> str:
        """Walk through an exit into the next room."""
        dx, dy = STEPS[direction]
        there = (self.here[0] + dx, self.here[1] + dy)
        if there not in self.rooms:
            return "You bump into a wall."
        self.here = there
        return "You have found the lamp!" if there == self.lamp else "You walk on."

    @property
    def is_done(self):
        return self.here == self.lamp

    def final_state(self):
        return {"room": list(self.here)}


def make_tasks(split, num):
    rng = random.Random(f"cave {split}")
    tasks = []
    for index in range(num):
        here = (0, 0)
        rooms = [here]
        while len(rooms) < 6:
            dx, dy = rng.choice(list(STEPS.values()))
            here = (here[0] + dx, here[1] + dy)
            if here not in rooms:
                rooms.append(here)
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": "You are in a dark cave. Find the lamp."},),
                fields={"rooms": [list(room) for room in rooms], "start": [0, 0], "lamp": list(rooms[-1])},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(any(str(step["result"]) == "You have found the lamp!" for step in trajectory.transitions))


def scorer(trajectory):
    return float((trajectory.final_state or {}).get("room") == trajectory.task.fields["lamp"])
