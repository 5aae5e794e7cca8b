"""A rota: when does somebody's next shift begin?"""

import calendar
import random
import time
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

PEOPLE = ["Ada", "Ben", "Cleo", "Drew", "Eve", "Finn", "Gwen", "Hal"]
MONDAY = calendar.timegm((2025, 3, 3, 0, 0, 0))


class Shifts(Environment):
    def reset(self, task):
        self.shifts = task.fields["shifts"]

    @tool
    def staff(self) -> list:
        """Everybody on the rota."""
        return sorted({shift["who"] for shift in self.shifts})

    @tool
    def shifts_of(self, name: str) -> list:
        """When the shifts of a person begin, in UTC, the earliest first."""
        begins = sorted(shift["begin"] for shift in self.shifts if shift["who"] == name)
        return [time.strftime("%Y-%m-%d %H:%M", time.localtime(begin)) for begin in begins]


def make_tasks(split, num):
    rng = random.Random(f"rota {split}")
    tasks = []
    for index in range(num):
        shifts = [
            {"who": name, "begin": MONDAY + rng.randint(0, 160) * 3600} for name in rng.sample(PEOPLE, 5) for _ in "ab"
        ]
        who = rng.choice(shifts)["who"]
        first = min(shift["begin"] for shift in shifts if shift["who"] == who)
        prompt = f"When does the first shift of {who} begin, in UTC? Answer as 2025-03-01 08:00, nothing else."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"shifts": shifts, "answer": time.strftime("%Y-%m-%d %H:%M", time.gmtime(first))},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and str(last["content"]).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
