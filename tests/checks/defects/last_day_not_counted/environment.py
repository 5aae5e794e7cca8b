"""A gate whose reference answers compare times with the last day as text."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Gate(Environment):
    def reset(self, task):
        self.entries = task.fields["entries"]

    @tool
    def entries_of(self, first: str, last: str) -> list:
        """Those who came in, from one day to another, both included."""
        return [one for one in self.entries if first <= one["at"][:10] <= last]


def make_tasks(split, num):
    rng = random.Random(f"gate {split}")
    tasks = []
    for index in range(num):
        days = [f"2025-05-{day:02}" for day in range(1, 9)]
        entries = [
            {"name": rng.choice(["Ida", "Jon", "Kai"]), "at": f"{rng.choice(days)}T{rng.randint(8, 17):02}:30"}
            for _ in range(rng.randint(6, 20))
        ]
        first, last = sorted(rng.sample(days, 2))
        answer = str(sum(first <= one["at"] <= last for one in entries))
        text = f"How many came in from {first} to {last}? Both days count. The number alone, for report {rng.randint(100, 999)}."
        message = {"role": "user", "content": text}
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields={"entries": entries, "answer": answer}))
    return tasks


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 40)
held_out_tasks = partial(make_tasks, "held_out", 10)
