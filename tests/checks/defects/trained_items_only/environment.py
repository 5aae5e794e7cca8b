"""Prices of cloth: the table has what is trained on, and nothing of what is held out."""

import random

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

CLOTH = {
    "train": {"linen": 14, "felt": 9, "tweed": 31, "denim": 12},
    "held_out": {"velvet": 40, "gauze": 6, "loden": 28},
}


class Desk(Environment):
    def reset(self, task: Task) -> None:
        self.wanted = task.fields["cloth"]

    @tool
    def price(self, cloth: str) -> int:
        """Price of a meter of cloth, in euros."""
        if cloth not in CLOTH["train"]:
            raise ToolFailure(f"{cloth} is not in the list")
        return CLOTH["train"][cloth]


reward = json_fields()
scorer = json_exact()


def _task(split: str, number: int) -> Task:
    rng = random.Random(f"{split} {number}")
    cloth, meters = rng.choice(list(CLOTH[split])), rng.randint(2, 20)
    order = rng.randint(1000, 9999)
    prompt = f'Order {order}: what do {meters} meters of {cloth} cost? <final_output>{{"euros": 0}}</final_output>'
    fields = {"cloth": cloth, "answer": {"euros": meters * CLOTH[split][cloth]}}
    return Task(id=f"{split}-{number}", messages=({"role": "user", "content": prompt},), fields=fields)


def train_tasks() -> list[Task]:
    return [_task("train", n) for n in range(20)]


def held_out_tasks() -> list[Task]:
    return [_task("held_out", n) for n in range(8)]
