"""A dig whose weights by material leave out the finds without one, which the description counts."""

import random
from functools import partial
from typing import Literal

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Expeditions(Environment):
    def reset(self, task):
        self.finds = task.fields["finds"]

    @tool
    def weight_by(self, what: Literal["layer", "material"]) -> dict[str, int]:
        """Grams of all finds of a dig, by layer or by material; those of unknown material are "unknown"."""
        totals: dict[str, int] = {}
        for one in self.finds:
            if one[what]:
                totals[one[what]] = totals.get(one[what], 0) + one["grams"]
        return totals


def make_tasks(split, num):
    rng = random.Random(f"finds {split}")
    tasks = []
    for index in range(num):
        finds = [
            {
                "find": f"F{number}",
                "layer": rng.choice(["upper", "middle", "lower"]),
                "material": rng.choice(["clay", "bone", "iron", "glass", None]),
                "grams": rng.randint(5, 900),
            }
            for number in rng.sample(range(100, 999), 15)
        ]
        answer = str(sum(one["grams"] for one in finds if not one["material"]))
        prompt = f"How many grams of the finds of dig {index} are of unknown material? Answer with the number alone."
        fields = {"finds": finds, "answer": answer}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
