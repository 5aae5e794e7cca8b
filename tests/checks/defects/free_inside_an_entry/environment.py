"""A tennis court that is offered while players who started earlier still play."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Court(Environment):
    def reset(self, task):
        self.games = task.fields["games"]

    @tool
    def free_hours(self) -> list:
        """Hours that are free, as their beginnings."""
        return [f"{hour:02}:00" for hour in range(8, 20) if f"{hour:02}:00" not in {one["from"] for one in self.games}]


def make_tasks(split, num):
    rng = random.Random(f"court {split}")
    tasks = []
    for index in range(num):
        games, hour = [], 8 + rng.randint(0, 2)
        while hour < 18:
            end = hour + rng.choice([1, 2, 3])
            games.append({"from": f"{hour:02}:00", "to": f"{end:02}:00", "who": rng.choice(["Ada", "Ben", "Cleo"])})
            hour = end + rng.randint(0, 2)
        busy = {one for game in games for one in range(int(game["from"][:2]), int(game["to"][:2]))}
        answer = f"{min(set(range(9, 24)) - busy):02}:00"
        message = {
            "role": "user",
            "content": f"Call {rng.randint(100, 999)}: the first free hour from 09:00 on? As hh:mm",
        }
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields={"games": games, "answer": answer}))
    return tasks


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 24)
held_out_tasks = partial(make_tasks, "held_out", 8)
