"""Seismology: questions to an earthquake catalogue about periods of days."""

from __future__ import annotations

import random
import re
from datetime import date, timedelta
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

PLACES = [
    "off Hokkaido",
    "Central Chile",
    "Aegean Sea",
    "Java trench",
    "South Island",
    "Cascadia",
    "Hindu Kush",
    "Azores",
]
FIRST_DAY = date(2024, 3, 1)
DAYS = 30


FIRST_NUMBER = {"train": 1000, "validation": 4000, "held_out": 7000}
"""Of the requests of a split; each has a number of its own."""


class Catalogue(Environment):
    def reset(self, task: Task) -> None:
        self._quakes = task.fields["quakes"]

    @tool
    def search_quakes(
        self, start: str, end: str, min_magnitude: Annotated[float, Bounded(ge=0, le=10)] = 0.0
    ) -> list[dict[str, str | float]]:
        """Earthquakes of a period, the oldest first: id, time (UTC) and magnitude.

        Args:
            start: first day of the period, as 2024-03-05
            end: last day of the period, which belongs to it
            min_magnitude: leaves out what is weaker
        """
        for day in (start, end):
            if not re.fullmatch(r"\d{4}-\d\d-\d\d", day):
                raise ToolFailure(f"{day} is no day; write it as 2024-03-05")
        return [
            {"id": quake["id"], "time": quake["time"], "magnitude": quake["magnitude"]}
            for quake in self._quakes
            if start <= quake["time"] <= end and quake["magnitude"] >= min_magnitude
        ]

    @tool
    def get_quake(self, quake_id: str) -> dict[str, str | float | int]:
        """Everything about one earthquake: time, magnitude, depth in km and place.

        Args:
            quake_id: id of the earthquake
        """
        for quake in self._quakes:
            if quake["id"] == quake_id:
                return quake
        raise ToolFailure(f"there is no earthquake {quake_id}")


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    return 1.0 if tagged(trajectory) == str(trajectory.task.fields["answer"]) else 0.0


scorer = exact_match("answer")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"quakes {split} {number}")
    quakes = []
    for offset in range(DAYS):
        for minute in sorted(rng.sample(range(24 * 60), rng.randint(1, 3))):
            day = FIRST_DAY + timedelta(days=offset)
            quakes.append(
                {
                    "id": f"eq{rng.randrange(10**6):06}", "time": f"{day}T{minute // 60:02}:{minute % 60:02}",
                    "magnitude": round(rng.uniform(2.0, 6.9), 1), "depth": rng.randint(3, 600), "place": rng.choice(PLACES),
                }
            )  # fmt: skip
    length, first = rng.randint(2, 6), rng.randint(0, DAYS - 8)
    start, end = FIRST_DAY + timedelta(days=first), FIRST_DAY + timedelta(days=first + length - 1)
    least = rng.choice([3.0, 3.5, 4.0])
    inside = [quake for quake in quakes if str(start) <= quake["time"][:10] <= str(end)]
    if number % 2:
        question = f"How many earthquakes of magnitude {least} or more were there"
        answer, example = sum(quake["magnitude"] >= least for quake in inside), "7"
    else:
        question = "How deep, in km, was the latest earthquake"
        answer, example = inside[-1]["depth"], "35"
    prompt = (
        f"Query {FIRST_NUMBER[split] + number}. {question} in the days from {start} to {end}, both days included (UTC)? "
        f"End with the number alone, as in <answer>{example}</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={"quakes": quakes, "start": str(start), "end": str(end), "least": least, "answer": answer},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
