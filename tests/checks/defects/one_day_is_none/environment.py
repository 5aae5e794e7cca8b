"""A nursery that takes the days of a text for none where it is `1 day`."""

import random
from datetime import date, timedelta
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Nursery(Environment):
    def reset(self, task):
        self.plants = task.fields["plants"]

    @tool
    def next_watering(self, plant: str) -> str:
        """Day on which a plant is watered next, as 2025-01-31."""
        one = next((one for one in self.plants if one["plant"] == plant), None)
        if one is None:
            return "no such plant"
        days = int(one["every"].removesuffix(" days")) if one["every"].endswith("days") else 0
        return str(date.fromisoformat(one["watered"]) + timedelta(days=days))


def make_tasks(split, num):
    rng = random.Random(f"nursery {split}")
    tasks = []
    for index in range(num):
        plants = [
            {
                "plant": f"F{number}",
                "watered": f"2025-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
                "every": rng.choice(["1 day", f"{rng.randint(2, 9)} days"]),
            }
            for number in rng.sample(range(100, 999), 5)
        ]
        wanted = plants[0]
        answer = str(date.fromisoformat(wanted["watered"]) + timedelta(days=int(wanted["every"].split()[0])))
        message = {"role": "user", "content": f"When is {wanted['plant']} watered next? As 2025-01-31"}
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields={"plants": plants, "answer": answer}))
    return tasks


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 24)
held_out_tasks = partial(make_tasks, "held_out", 8)
