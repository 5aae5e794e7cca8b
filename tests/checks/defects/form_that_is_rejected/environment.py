"""A bakery whose prompt asks for two decimals, and whose reference answers have one."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Bakery(Environment):
    def reset(self, task):
        self.breads = task.fields["breads"]

    @tool
    def weight(self, bread: str) -> float:
        """Weight of a bread in kg."""
        return self.breads.get(bread, 0.0)


def make_tasks(split, num):
    rng = random.Random(f"bakery {split}")
    tasks = []
    for index in range(num):
        breads = {f"B{number}": rng.randint(2, 30) / 10 for number in rng.sample(range(100, 999), 4)}
        wanted = rng.choice(sorted(breads))
        text = f"What does {wanted} weigh, in kg with two decimals? Answer with the number alone."
        message = {"role": "user", "content": text}
        tasks.append(
            Task(id=f"{split}-{index}", messages=(message,), fields={"breads": breads, "answer": str(breads[wanted])})
        )
    return tasks


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 40)
held_out_tasks = partial(make_tasks, "held_out", 16)
