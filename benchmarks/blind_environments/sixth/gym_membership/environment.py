"""A gym's desk: sign members up and tell them when the membership ends."""

from __future__ import annotations

import random
from datetime import date
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.types import Task, Trajectory

FIRST_NAMES = ["Alma", "Bruno", "Carla", "Dirk", "Edda", "Falk", "Greta"]


def end_of(start: date, months: int) -> date:
    """The same day so many months later."""
    return start.replace(month=start.month + months)


def later(start: date, months: int) -> date:
    years, month = divmod(start.month - 1 + months, 12)
    return date(start.year + years, month + 1, start.day)


class Gym(Environment):
    def reset(self, task: Task) -> None:
        self.members: dict[str, str] = {}

    @tool
    def sign_up(self, name: str, start: str, months: Annotated[int, Bounded(ge=1, le=12)]) -> str:
        """Sign a member up; returns the day on which the membership ends.

        Args:
            name: first name of the member
            start: first day, as YYYY-MM-DD
            months: how long, in months
        """
        if name in self.members:
            return f"error: {name} is a member already"
        ends = end_of(date.fromisoformat(start), months)
        self.members[name] = ends.isoformat()
        return f"{name} is a member until {ends.isoformat()}"

    def final_state(self) -> dict[str, str]:
        return dict(self.members)


def reward(trajectory: Trajectory) -> float:
    """Half for the member on the list, half for the day in the answer."""
    fields, last = trajectory.task.fields, trajectory.messages[-1]
    listed = trajectory.final_state == {fields["name"]: fields["ends"]}
    named = last["role"] == "assistant" and (last.get("content") or "").strip() == fields["ends"]
    return 0.5 * listed + 0.5 * (listed and named)


def scorer(trajectory: Trajectory) -> float:
    fields = trajectory.task.fields
    return float(trajectory.final_state == {fields["name"]: fields["ends"]})


def _tasks(split: str, num: int) -> list[Task]:
    rng = random.Random(f"gym|{split}")
    made = []
    for n in range(num):
        start = date(2025, rng.randint(1, 12), rng.randint(1, 28))
        months = rng.choice([1, 3, 6])
        name = rng.choice(FIRST_NAMES)
        text = f"Sign {name} up for {months} months from {start.isoformat()}. Answer with the last day only, as YYYY-MM-DD."
        fields = {"name": name, "start": start.isoformat(), "months": months, "ends": later(start, months).isoformat()}
        made.append(Task(id=f"gym-{split}-{n}", messages=({"role": "user", "content": text},), fields=fields))
    return made


def train_tasks() -> list[Task]:
    return _tasks("train", 90)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", 30)
