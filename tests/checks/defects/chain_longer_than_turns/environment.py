"""A parcel was handed from depot to depot; only the last one has its shelf.

Some were handed on more often than an episode has turns.
"""

import itertools
import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Score, Task


class Depots(Environment):
    def reset(self, task):
        self.slips = task.fields["slips"]

    @tool
    def slip(self, code: str) -> dict:
        """A slip: the next slip that the parcel went on with, or the shelf where it lies."""
        if code not in self.slips:
            raise ToolFailure(f"no slip {code}")
        return self.slips[code]


def make_tasks(split, num):
    rng = random.Random(f"{split} chain longer than turns")
    tasks = []
    for index in range(num):
        codes = [f"{split[0].upper()}{one}" for one in rng.sample(range(100, 999), 3 + index % 4)]
        slips = {one: {"next": two} for one, two in itertools.pairwise(codes)}
        shelf = f"shelf {rng.randint(1, 80)}"
        slips[codes[-1]] = {"shelf": shelf}
        prompt = f"Where does the parcel of slip {codes[0]} lie? Answer with the shelf."
        fields = {"slips": dict(sorted(slips.items())), "answer": shelf}
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
