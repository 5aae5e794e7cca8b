"""Irrigation: how much water does a field need today?"""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

CROPS = {"maize": 5.0, "beans": 4.0, "onions": 3.5, "melons": 6.0}


class Fields(Environment):
    def reset(self, task: Task) -> None:
        self.fields = {f["name"]: f for f in task.fields["plots"]}

    @tool
    def field_info(self, name: str) -> str:
        """Crop and area of a field."""
        if name not in self.fields:
            return f"error: no field {name}; there are {', '.join(self.fields)}"
        return f"{self.fields[name]['crop']}, {self.fields[name]['area']} square metres"

    @tool
    def crop_need(self, crop: str) -> str:
        """What a crop needs in a day."""
        return f"{CROPS[crop]} litres per square metre and day" if crop in CROPS else "error: unknown crop"

    @tool
    def rain_today(self, name: str) -> str:
        """The rain that a field gets today."""
        return f"{self.fields[name]['rain']} litres per square metre" if name in self.fields else "error: no such field"


def _number(trajectory: Trajectory) -> float | None:
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*", last.get("content") or "")
    return float(found[1]) if found else None


def reward(trajectory: Trajectory) -> float:
    said = _number(trajectory)
    return 1.0 if said is not None and abs(said - trajectory.task.fields["answer"]) < 0.51 else 0.0


def scorer(trajectory: Trajectory) -> float:
    said = _number(trajectory)
    return 1.0 if said is not None and abs(said - trajectory.task.fields["answer"]) < 0.51 else 0.0


def need(plot: dict) -> float:
    """What has to be pumped: the need of the crop less the rain, over the area."""
    return max(0.0, CROPS[plot["crop"]] - plot["rain"]) * plot["area"] / 1000


def make(split: str, num: int) -> list[Task]:
    rng = random.Random(f"farm {split}")
    tasks = []
    for index in range(num):
        names = rng.sample(["North", "South", "River", "Hill", "Mill"], 3)
        plots = [
            {
                "name": n,
                "crop": rng.choice(list(CROPS)),
                "area": rng.randrange(2000, 60000, 500),
                "rain": rng.choice([0.0, 0.5, 1.0, 2.0]),
            }
            for n in names
        ]
        plot = rng.choice(plots)
        text = f"How many litres must be pumped to the field {plot['name']} today? Answer with the number only."
        tasks.append(
            Task(
                id=f"farm-{split}-{index}",
                messages=({"role": "user", "content": text},),
                fields={"plots": plots, "answer": need(plot)},
            )
        )
    return tasks


def train_tasks() -> list[Task]:
    return make("train", 80)


def held_out_tasks() -> list[Task]:
    return make("held_out", 30)
