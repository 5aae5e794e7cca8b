"""A port whose reference answers are of another crane in every tenth task."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Port(Environment):
    def reset(self, task):
        self.cranes = task.fields["cranes"]

    @tool
    def loads(self, crane: str) -> list:
        """What a crane has lifted today: ship and tons."""
        return self.cranes.get(crane, [])


def make_tasks(split, num):
    rng = random.Random(f"port {split}")
    tasks = []
    for index in range(num):
        cranes = {
            f"K{number}": [{"ship": rng.choice(["Ada", "Eos", "Ino"]), "tons": rng.randint(10, 99)} for _ in range(4)]
            for number in rng.sample(range(10, 99), 3)
        }
        wanted, other, _ = cranes
        answer = str(sum(one["tons"] for one in cranes[other if index % 10 == 7 else wanted]))
        message = {"role": "user", "content": f"How many tons has crane {wanted} lifted? Answer with the number alone."}
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields={"cranes": cranes, "answer": answer}))
    return tasks


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 40)
held_out_tasks = partial(make_tasks, "held_out", 10)
