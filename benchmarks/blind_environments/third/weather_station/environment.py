"""Readings of weather stations, in a data frame for each episode."""

import random
import re

import pandas as pd

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import numeric_match
from sparring.types import Task

MISSING = -999.0  # what the loggers write when a sensor does not answer
PLACES = ["Alta", "Brevik", "Dombas", "Elverum", "Finse", "Gjovik", "Hamar", "Jeloy", "Kautokeino", "Lista"]


class Station(Environment):
    def reset(self, task):
        self.frame = pd.DataFrame(task.fields["rows"], columns=["place", "day", "celsius", "rain_mm"])

    def _of(self, place):
        part = self.frame[self.frame["place"] == place]
        if part.empty:
            raise ToolFailure(f"no station at {place}")
        return part

    @tool
    def stations(self) -> list[str]:
        """Places that have a station."""
        return sorted(self.frame["place"].unique().tolist())

    @tool
    def mean_temperature(self, place: str) -> float:
        """Mean temperature of a station over the month in degrees Celsius, to two digits; days without a reading do not count.

        Args:
            place: one of stations()
        """
        return round(float(self._of(place)["celsius"].mean()), 2)

    @tool
    def total_rain(self, place: str) -> float:
        """Rain of the month in mm.

        Args:
            place: one of stations()
        """
        return round(float(self._of(place)["rain_mm"].sum()), 1)


scorer = numeric_match(tolerance=0.02)


def reward(trajectory):
    """Half for being near, all for being right."""
    text = trajectory.messages[-1].get("content") or ""
    found = re.findall(r"<final_output>\s*(-?\d+(?:\.\d+)?)\s*</final_output>", text)
    if trajectory.messages[-1]["role"] != "assistant" or len(found) != 1:
        return 0.0
    gap = abs(float(found[0]) - trajectory.task.fields["answer"])
    return 1.0 if gap < 0.025 else 0.5 if gap < 0.2 else 0.0


def _task(split, i, rng):
    rows, means, rains = [], {}, {}
    for place in rng.sample(PLACES, 3):
        base = rng.uniform(-8, 16)
        values = [round(base + rng.gauss(0, 3), 1) for _ in range(28)]
        for gap in rng.sample(range(28), rng.choice([0, 0, 2, 4])):
            values[gap] = MISSING
        rain = [round(max(0.0, rng.gauss(0, 5)), 1) for _ in values]
        rows += [[place, day, value, wet] for day, (value, wet) in enumerate(zip(values, rain), start=1)]
        read = [value for value in values if value != MISSING]
        means[place], rains[place] = round(sum(read) / len(read), 2), round(sum(rain), 1)
    first, second, _ = means
    if i % 4 == 3:
        question, answer, ask = (
            f"How many mm of rain fell in {first} and {second} together?",
            rains[first] + rains[second],
            "rain",
        )
    else:
        question, answer, ask = (
            f"By how many degrees Celsius was {first} warmer than {second} on average (negative if colder)?",
            means[first] - means[second],
            "heat",
        )
    content = (
        f"Bulletin {rng.randint(1000, 9999)}. "
        + question
        + " Answer with the number alone: <final_output>1.25</final_output>"
    )
    return Task(
        id=f"{split}{i}",
        messages=({"role": "user", "content": content},),
        fields={"rows": rows, "answer": round(answer, 2), "places": [first, second], "ask": ask},
    )


def train_tasks():
    return [_task("february-", i, random.Random(1000 + i)) for i in range(32)]


def held_out_tasks():
    return [_task("march-", i, random.Random(5000 + i)) for i in range(12)]
