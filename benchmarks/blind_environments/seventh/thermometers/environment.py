"""Cold store: the mean temperature of a room, from its sensors and their corrections."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import numeric_match
from sparring.types import Task, Trajectory

ROOMS = ["fish", "meat", "dairy", "fruit", "flowers", "ice", "bread", "vaccines", "herbs", "wine"]
INSTRUCTIONS = (
    "You watch the rooms of a cold store. `sensors` names a room's sensors, `reading` says what a sensor shows and what its "
    "correction is: add it to what is shown. Answer with the mean of the corrected readings of the room in degrees Celsius, to "
    "one decimal, as a number: <final_output>4.5</final_output>"
)
TOLERANCE = 1e-5
"""Relative: what the last digit of a float may be off by, and no more."""


class ColdStore(Environment):
    def reset(self, task: Task) -> None:
        self.room, self.readings = task.fields["room"], task.fields["readings"]

    @tool
    def sensors(self, room: str) -> list[str]:
        """The names of the sensors of a room."""
        return list(self.readings) if room == self.room else []

    @tool
    def reading(self, sensor: str) -> dict[str, float] | str:
        """What a sensor shows, and its correction, both in degrees Celsius.

        Args:
            sensor: its name
        """
        return self.readings.get(sensor, "no such sensor")


def reward(trajectory: Trajectory) -> float:
    """1 when the mean is right, but for rounding."""
    last, expected = trajectory.messages[-1], trajectory.task.fields["answer"]
    if last["role"] != "assistant":
        return 0.0
    text = last.get("content") or ""
    tags = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if len(tags) != 1 or text.count("<final_output>") != 1 or not re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", tags[0]):
        return 0.0
    return float(abs(float(tags[0]) - expected) <= TOLERANCE * expected)


scorer = numeric_match("final_output", "answer", tolerance=0.001)


def train_tasks() -> list[Task]:
    return _tasks()[:40]


def held_out_tasks() -> list[Task]:
    return _tasks()[40:]


def _tasks() -> list[Task]:
    rng = random.Random("cold store")
    names = [f"{room} {number}" for room in ROOMS for number in range(1, 7)]
    return [_task(index, name, rng) for index, name in enumerate(rng.sample(names, 54))]


def _task(index: int, room: str, rng: random.Random) -> Task:
    base = rng.choice((-18.0, -12.0, -6.0, 4.0, 7.0, 12.0))
    num = rng.choice((2, 4))
    readings = {}
    for letter in rng.sample("ABCDEFGH", num):
        readings[f"{letter}{rng.randint(10, 99)}"] = {
            "shows": round(base + rng.randint(-12, 12) / 10, 1),
            "correction": rng.choice((-1.2, -0.8, 0.4, 0.6, 1.0)),
        }
    # The last sensor makes the sum divide evenly, so that the mean has one decimal.
    tenths = [round(10 * (entry["shows"] + entry["correction"])) for entry in readings.values()]
    last = list(readings.values())[-1]
    last["shows"] = round(last["shows"] + (-sum(tenths) % num) / 10, 1)
    total = sum(round(10 * (entry["shows"] + entry["correction"])) for entry in readings.values())
    return Task(
        id=f"room-{index}",
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"How cold is the room {room}?"},
        ),
        fields={"room": room, "readings": readings, "answer": total // num / 10},
    )
