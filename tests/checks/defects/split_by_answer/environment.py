"""A bakery whose tasks were sorted by their answers before they were split."""

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
        answer = "heavy" if breads[wanted] > 2 else "medium" if breads[wanted] > 1 else "light"
        message = {
            "role": "user",
            "content": f"Over 2 kg is heavy, over 1 medium, else light. What is {wanted}? One word.",
        }
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields={"breads": breads, "answer": answer}))
    return [one for one in tasks if (one.fields["answer"] == "heavy") == (split == "held_out")]


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 40)
held_out_tasks = partial(make_tasks, "held_out", 16)
