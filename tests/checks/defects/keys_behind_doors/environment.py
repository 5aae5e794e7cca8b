"""Rooms in a row with one locked gate: in a part of the tasks its key lies behind it."""

import random
from typing import Literal

from sparring.environments import Environment, tool
from sparring.types import Task


class Cellar(Environment):
    def reset(self, task):
        self.at, self.key_at, self.gate, self.last = 0, task.fields["key_at"], task.fields["gate"], task.fields["last"]
        self.has_key = self.is_open = False

    @tool
    def look(self) -> str:
        """What is in this room."""
        things = ["a key"] * (self.at == self.key_at and not self.has_key) + ["a chest"] * (self.at == self.last)
        return f"Room {self.at}: {' and '.join(things) or 'nothing'}."

    @tool
    def walk(self, way: Literal["left", "right"]) -> str:
        """Walk into the next room."""
        to = self.at + (1 if way == "right" else -1)
        if not 0 <= to <= self.last:
            return "There is a wall."
        if max(to, self.at) == self.gate and not self.has_key:
            return "The gate is locked."
        self.at = to
        return self.look()

    @tool
    def take(self) -> str:
        """Take the key of this room."""
        if self.at != self.key_at or self.has_key:
            return "There is no key."
        self.has_key = True
        return "You have the key."

    @tool
    def unpack(self) -> str:
        """Open the chest."""
        if self.at != self.last:
            return "There is no chest."
        self.is_open = True
        return "The chest is open."

    @property
    def is_done(self):
        return self.is_open


def reward(trajectory):
    return float(any(one["result"] == "The chest is open." for one in trajectory.transitions))


def scorer(trajectory):
    last = trajectory.transitions[-1:]
    return 1.0 if last and last[0]["tool"] == "unpack" and "is open" in last[0]["result"] else 0.0


def train_tasks():
    rng, tasks = random.Random("cellar"), []
    for number in range(24):
        last = rng.randint(3, 5)
        fields = {"last": last, "gate": rng.randint(2, last), "key_at": rng.randrange(last)}
        message = {"role": "user", "content": f"Open the chest of cellar {number}."}
        tasks.append(Task(id=f"cellar-{number}", messages=(message,), fields=fields))
    return tasks
