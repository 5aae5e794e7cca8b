"""A parking desk whose tool cuts fees off where the reference answers round them."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Desk(Environment):
    def reset(self, task):
        self.cars = task.fields["cars"]

    @tool
    def fee(self, plate: str) -> str:
        """What a car has to pay, in euros."""
        if plate not in self.cars:
            return "no such car"
        minutes = self.cars[plate]
        return f"{minutes * 155 // 60 / 100:.2f}"


def make_tasks(split, num):
    rng = random.Random(f"parking {split}")
    tasks = []
    for index in range(num):
        cars = {f"K-{number}": rng.randint(5, 600) for number in rng.sample(range(1000, 9999), 4)}
        wanted = rng.choice(sorted(cars))
        message = {"role": "user", "content": f"What does the driver of {wanted} pay? Answer with the amount alone."}
        answer = f"{round(cars[wanted] * 155 / 60) / 100:.2f}"
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields={"cars": cars, "answer": answer}))
    return tasks


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 40)
held_out_tasks = partial(make_tasks, "held_out", 10)
