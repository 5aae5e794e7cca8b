"""A water works whose sensors write -999 where they fail, which the mean takes in."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Works(Environment):
    def reset(self, task):
        self.readings = task.fields["readings"]

    @tool
    def mean_level(self, tank: str) -> float:
        """Mean level of a tank in cm."""
        levels = [one["level"] for one in self.readings if one["tank"] == tank]
        return round(sum(levels) / max(1, len(levels)), 1)


def make_tasks(split, num):
    rng = random.Random(f"works {split}")
    tasks = []
    for index in range(num):
        readings = [{"tank": f"T{tank}", "level": rng.randint(40, 60)} for tank in (1, 2, 3) for _ in range(6)]
        for one in rng.sample(readings, 3):
            one["level"] = -999
        tank = f"T{rng.randint(1, 3)}"
        levels = [one["level"] for one in readings if one["tank"] == tank and one["level"] > 0]
        answer = str(round(sum(levels) / len(levels), 1))
        message = {"role": "user", "content": f"Report {rng.randint(100, 999)}: what is the mean level of {tank}?"}
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields={"readings": readings, "answer": answer}))
    return tasks


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 24)
held_out_tasks = partial(make_tasks, "held_out", 8)
