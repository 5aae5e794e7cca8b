"""Balloon launches whose board adds the hours of winter all year."""

import random
from datetime import datetime, timedelta
from functools import partial

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task

HOURS = {"Paris": 1, "Chicago": -6, "Dublin": 0}


class Launches(Environment):
    def reset(self, task):
        self.balloons = task.fields["balloons"]
        self.site = task.fields["site"]

    @tool
    def plan(self, balloon: str) -> dict:
        """Time of a balloon's launch in UTC, and its load in kg."""
        if balloon not in self.balloons:
            raise ToolFailure(f"there is no balloon {balloon}")
        return {"balloon": balloon, "launch_utc": self.balloons[balloon]["utc"], "load": self.balloons[balloon]["load"]}

    @tool
    def board(self) -> list[dict]:
        """All balloons of the site, each with the local time of its launch and the site."""
        shift = timedelta(hours=HOURS[self.site])
        return [
            {"balloon": name, "launch": f"{datetime.fromisoformat(one['utc']) + shift:%Y-%m-%d %H:%M}"}
            for name, one in self.balloons.items()
        ]

    @tool
    def site_of(self, balloon: str) -> dict:
        """The site from which a balloon is launched."""
        if balloon not in self.balloons:
            raise ToolFailure(f"there is no balloon {balloon}")
        return {"balloon": balloon, "site": self.site}


def make_tasks(split, num):
    rng = random.Random(f"launches {split}")
    tasks = []
    for index in range(num):
        day = datetime(2025, 1, 2) + timedelta(days=rng.randrange(360))
        balloons = {
            f"B{number}": {"utc": f"{day:%Y-%m-%d} {10 + place}:{rng.randint(10, 59)}", "load": rng.randint(10, 99)}
            for place, number in enumerate(rng.sample(range(100, 999), 4))
        }
        wanted = rng.choice(sorted(balloons))
        prompt = f"What load in kg does the balloon {wanted} carry? Answer with the number alone."
        fields = {"balloons": balloons, "site": rng.choice(sorted(HOURS)), "answer": str(balloons[wanted]["load"])}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
