"""A station's information desk: which train is the next one after a time?"""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

TOWNS = [
    "Arden",
    "Brixham",
    "Colby",
    "Dunmore",
    "Eldon",
    "Fenwick",
    "Garth",
    "Holt",
    "Ivybridge",
    "Jarrow",
    "Kelso",
    "Luss",
]


def minutes(clock: str) -> int:
    hours, rest = clock.split(":")
    return int(hours) * 60 + int(rest)


class Desk(Environment):
    """Timetable of one station."""

    def reset(self, task: Task) -> None:
        self.trains = task.fields["trains"]

    @tool
    def next_trains(self, town: str, after: str, num: int = 1) -> list[dict[str, str]]:
        """The next trains to a town that leave later than a time, the earliest first.

        Args:
            town: where to
            after: time of day, such as 9:40 or 14:05
            num: how many trains to list
        """
        if not re.fullmatch(r"\d{1,2}:\d\d", after):
            raise ValueError(f"{after!r} is no time of day such as 9:40")
        fitting = [
            train for train in self.trains if train["town"] == town and minutes(train["leaves"]) > minutes(after)
        ]
        fitting.sort(key=lambda train: train["leaves"])
        return fitting[: max(1, num)]

    @tool
    def platform(self, train: str) -> str:
        """Platform of a train.

        Args:
            train: its number, such as T12
        """
        for row in self.trains:
            if row["train"] == train:
                return f"platform {int(train[1:]) % 7 + 1}"
        return "unknown train"


def final_answer(trajectory: Trajectory) -> str:
    last = trajectory.messages[-1]
    return str(last.get("content") or "").strip() if last["role"] == "assistant" else ""


def reward(trajectory: Trajectory) -> float:
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


def scorer(trajectory: Trajectory) -> float:
    fields = trajectory.task.fields
    later = {
        minutes(train["leaves"]): train["train"]
        for train in fields["trains"]
        if train["town"] == fields["town"] and minutes(train["leaves"]) > minutes(fields["after"])
    }
    return 1.0 if final_answer(trajectory) == later[min(later)] else 0.0


def build(split: str, towns: list[str], num: int) -> list[Task]:
    rng = random.Random(split)
    tasks = []
    while len(tasks) < num:
        town = rng.choice(towns)
        times = rng.sample(range(6 * 60, 22 * 60, 5), 14)
        trains = [
            {
                "train": f"T{10 + index}",
                "town": town if index % 2 else rng.choice(TOWNS),
                "leaves": f"{time // 60}:{time % 60:02d}",
            }
            for index, time in enumerate(times)
        ]
        after = rng.randrange(6 * 60, 18 * 60, 5)
        clock = f"{after // 60}:{after % 60:02d}"
        later = sorted(
            (minutes(t["leaves"]), t["train"]) for t in trains if t["town"] == town and minutes(t["leaves"]) > after
        )
        if not later:
            continue
        text = f"Which is the next train to {town} after {clock}? Ask the timetable, then answer with the train's number alone."
        tasks.append(
            Task(
                id=f"{split}-{len(tasks)}",
                messages=({"role": "user", "content": text},),
                fields={"trains": trains, "town": town, "after": clock, "answer": later[0][1]},
            )
        )
    return tasks


def train_tasks() -> list[Task]:
    return build("train", TOWNS[:8], 64)


def validation_tasks() -> list[Task]:
    return build("validation", TOWNS[8:10], 16)


def held_out_tasks() -> list[Task]:
    return build("held_out", TOWNS[10:], 16)
