"""A shipping office: how many hours does a crossing take?"""

import random
import re
from datetime import datetime, timedelta

from sparring.environments import Environment, tool
from sparring.types import Task

SHIPS = ["Aurora", "Borealis", "Carina", "Dorado", "Electra", "Fornax", "Gemini", "Hydra", "Indus", "Lyra"]
STAMP = "%Y-%m-%d %H:%M"


def hours(departs, arrives):
    between = datetime.strptime(arrives, STAMP) - datetime.strptime(departs, STAMP)
    return between.seconds / 3600


class Shipping(Environment):
    def reset(self, task):
        self.schedule = task.fields["schedule"]

    @tool
    def crossing(self, ship: str) -> dict[str, str]:
        """Departure and arrival of a ship, both in UTC.

        Args:
            ship: its name
        """
        if ship not in self.schedule:
            raise ValueError(f"no ship {ship}")
        return self.schedule[ship]

    @tool
    def ships(self) -> list[str]:
        """Names of all ships in the schedule."""
        return sorted(self.schedule)


def _hours_named(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?) hours\.?\s*", last.get("content") or "")
    return float(found.group(1)) if found else None


def reward(trajectory):
    given = _hours_named(trajectory)
    return 1.0 if given is not None and abs(given - trajectory.task.fields["hours"]) < 0.05 else 0.0


def scorer(trajectory):
    given = _hours_named(trajectory)
    return float(given is not None and round(given, 1) == round(trajectory.task.fields["hours"], 1))


def voyages(split, ships, num):
    rng = random.Random(f"sea {split}")
    tasks = []
    for index in range(num):
        schedule = {}
        for ship in rng.sample(ships, 2):
            leaves = datetime(2024, 3, 1) + timedelta(minutes=30 * rng.randrange(0, 1400))
            arrives = leaves + timedelta(minutes=30 * rng.randrange(10, 150))
            schedule[ship] = {"departs": leaves.strftime(STAMP), "arrives": arrives.strftime(STAMP)}
        ship = rng.choice(sorted(schedule))
        text = f"How many hours is the {ship} at sea? Look the crossing up and reply as in `31.5 hours`."
        fields = {"schedule": schedule, "ship": ship, "hours": hours(**schedule[ship])}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": text},), fields=fields))
    return tasks


def train_tasks():
    return voyages("train", SHIPS[:5], 60)


def validation_tasks():
    return voyages("validation", SHIPS[5:7], 16)


def held_out_tasks():
    return voyages("held_out", SHIPS[7:], 16)
