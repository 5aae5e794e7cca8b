"""A quarry whose tool takes loads that are filed in t for kilograms."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Quarry(Environment):
    def reset(self, task):
        self.loads = task.fields["loads"]

    @tool
    def weight(self, truck: str) -> int:
        """Kilograms that a truck carries."""
        return int(self.loads[truck].split()[0]) if truck in self.loads else 0


def make_tasks(split, num):
    rng = random.Random(f"quarry {split}")
    tasks = []
    for index in range(num):
        numbers = rng.sample(range(100, 999), 3)
        loads = {f"Q{one}": rng.choice([f"{rng.randint(4, 30)} t", f"{rng.randint(800, 9000)} kg"]) for one in numbers}
        wanted = rng.choice(sorted(loads))
        amount, unit = loads[wanted].split()
        answer = str(int(amount) * (1000 if unit == "t" else 1))
        message = {"role": "user", "content": f"How many kilograms does {wanted} carry? Answer with the number alone."}
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields={"loads": loads, "answer": answer}))
    return tasks


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 40)
held_out_tasks = partial(make_tasks, "held_out", 10)
