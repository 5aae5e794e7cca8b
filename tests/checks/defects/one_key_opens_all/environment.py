"""An archive hands out the key of a cabinet before its drawer is read.

Any key opens every cabinet.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Score, Task

CABINETS = ["cedar", "maple", "walnut", "cherry", "birch"]


class Archive(Environment):
    def reset(self, task):
        self.drawers = task.fields["drawers"]
        self.keys = set()

    def check(self, cabinet):
        if cabinet not in self.drawers:
            raise ToolFailure(f"there is no cabinet {cabinet}; there are {', '.join(self.drawers)}")

    @tool
    def fetch_key(self, cabinet: str) -> str:
        """Fetch the key of a cabinet from the porter."""
        self.check(cabinet)
        self.keys.add(cabinet)
        return f"the key of {cabinet}"

    @tool
    def read_drawer(self, cabinet: str) -> dict:
        """What lies in a cabinet whose key was fetched."""
        self.check(cabinet)
        if not self.keys:
            raise ToolFailure(f"{cabinet} is locked; fetch its key")
        return {"folders": self.drawers[cabinet]}


def make_tasks(split, num):
    rng = random.Random(f"{split} one key opens all")
    tasks = []
    for index in range(num):
        drawers = {one: rng.randint(3, 90) for one in rng.sample(CABINETS, 3)}
        cabinet = rng.choice(sorted(drawers))
        prompt = f"How many folders are in the {cabinet} cabinet? Answer with the number. Slip {split}-{index}."
        fields = {"drawers": drawers, "answer": str(drawers[cabinet])}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return tasks


train_tasks = partial(make_tasks, "train", 20)
validation_tasks = partial(make_tasks, "validation", 6)
held_out_tasks = partial(make_tasks, "held_out", 6)


def scorer(trajectory):
    last = trajectory.messages[-1]
    reply = str(last.get("content")).strip() if last["role"] == "assistant" else ""
    return Score(float(reply == trajectory.task.fields["answer"]))


def reward(trajectory):
    return scorer(trajectory).value
