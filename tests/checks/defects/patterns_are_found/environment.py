"""A greenhouse whose labels are compared as patterns of file names."""

import random
from fnmatch import fnmatch
from functools import partial

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task


class Greenhouse(Environment):
    def reset(self, task):
        self.plants = task.fields["plants"]

    @tool
    def plant(self, label: str) -> dict:
        """Tray and height of a plant, by its label. Capitals do not count."""
        found = next((one for one in self.plants if fnmatch(one["label"], label)), None)
        if found is None:
            raise ToolFailure(f"there is no label {label}")
        return {"tray": found["tray"], "height": found["height"]}


def make_tasks(split, num):
    rng = random.Random(f"greenhouse {split}")
    tasks = []
    for index in range(num):
        plants = [
            {"label": f"fern{number}", "tray": rng.randint(10, 999), "height": rng.randint(4, 90)}
            for number in rng.sample(range(1000, 9999), 8)
        ]
        wanted = rng.choice(plants)
        message = {"role": "user", "content": f"In which tray is {wanted['label']}? Answer with its number alone."}
        fields = {"plants": plants, "answer": str(wanted["tray"])}
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields=fields))
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
