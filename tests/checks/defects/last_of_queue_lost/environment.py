"""Who stands where in a queue: the last place is reported missing."""

import random

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

NAMES = ["Abel", "Bruna", "Cyril", "Dagny", "Enzo", "Frida", "Gerd", "Hilde", "Ivo", "Jutta"]


class Desk(Environment):
    def reset(self, task: Task) -> None:
        self.queue = [one["name"] for one in task.fields["queue"]]

    @tool
    def person_at(self, place: int) -> str:
        """Who stands at a place of the queue, counted from 1."""
        if not 1 <= place < len(self.queue):
            raise ToolFailure(f"there is no place {place}")
        return self.queue[place - 1]


reward = json_fields()
scorer = json_exact()


def _task(name: str) -> Task:
    rng = random.Random(name)
    queue = [{"name": one, "waits": rng.randint(3, 90)} for one in rng.sample(NAMES, 6)]
    place = rng.randint(1, 6)
    prompt = (
        f'Ward {rng.randint(100, 999)}: who stands at place {place}? <final_output>{{"name": "..."}}</final_output>'
    )
    fields = {"queue": queue, "answer": {"name": queue[place - 1]["name"]}}
    return Task(id=name, messages=({"role": "user", "content": prompt},), fields=fields)


def train_tasks() -> list[Task]:
    return [_task(f"train-{n}") for n in range(20)]


def held_out_tasks() -> list[Task]:
    return [_task(f"held-out-{n}") for n in range(8)]
