"""A shop whose reward reads no further than the decimal point."""

import random
import re
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Shop(Environment):
    def reset(self, task):
        self.prices = task.fields["prices"]

    @tool
    def price(self, item: str) -> str:
        """What an item costs, in euros."""
        return self.prices.get(item, "no such item")


def make_tasks(split, num):
    rng = random.Random(f"shop {split}")
    tasks = []
    for index in range(num):
        items = rng.sample(["lamp", "rug", "sofa", "desk", "chair", "vase"], 3)
        prices = {item: rng.choice([f"{rng.randint(3, 90)}", f"{rng.randint(30, 900) / 10}"]) for item in items}
        text = f"Customer {rng.randint(1000, 9999)} asks what the {items[0]} costs. Answer with the number alone."
        message = {"role": "user", "content": text}
        tasks.append(
            Task(id=f"{split}-{index}", messages=(message,), fields={"prices": prices, "answer": prices[items[0]]})
        )
    return tasks


def reward(trajectory):
    found = re.search(r"\d+", str(trajectory.messages[-1].get("content")))
    return float(found is not None and found[0] == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 40)
held_out_tasks = partial(make_tasks, "held_out", 10)
