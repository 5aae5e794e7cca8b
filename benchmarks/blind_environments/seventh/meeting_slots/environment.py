"""Meetings: find an hour at which all people are free."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

PEOPLE = ["Ada", "Bo", "Cy", "Dina", "Ed", "Flo", "Gus", "Hana", "Ivo", "Jun", "Kai", "Lea", "Mo", "Nia"]
DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri"]
SLOTS = [f"{day} {hour:02}:00" for day in DAYS for hour in range(9, 17)]
INSTRUCTIONS = (
    "You plan meetings of one hour, from 09:00 to 17:00. `busy` lists the hours at which a person has no time in a week. Find an "
    "hour at which everybody who is to come is free, and end with it: <final_output>Tue 14:00</final_output>"
)


class Planner(Environment):
    def reset(self, task: Task) -> None:
        self.calendars = task.fields["calendars"]

    @tool
    def busy(self, person: str) -> list[str] | str:
        """The hours at which a person has no time, as `Tue 14:00`.

        Args:
            person: the first name
        """
        return self.calendars.get(person, f"{person} has no calendar here")


def reward(trajectory: Trajectory) -> float:
    """1 for the right hour."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    said = re.findall(r"<final_output>([^<]*)</final_output>", text)
    if text.count("<final_output>") != 1:
        return 0.0
    is_right = last["role"] == "assistant" and len(said) == 1 and said[0].strip() == trajectory.task.fields["answer"]
    return 1.0 if is_right else 0.0


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:32]


def held_out_tasks() -> list[Task]:
    return _tasks()[32:]


def _tasks() -> list[Task]:
    rng = random.Random("meetings")
    groups: list[tuple[str, ...]] = []
    while len(groups) < 44:
        group = tuple(sorted(rng.sample(PEOPLE, rng.randint(2, 3))))
        if group not in groups:
            groups.append(group)
    return [_task(index, group, rng) for index, group in enumerate(groups)]


def _task(index: int, group: tuple[str, ...], rng: random.Random) -> Task:
    while True:
        calendars = {person: sorted(rng.sample(SLOTS, 22), key=SLOTS.index) for person in group}
        free = [slot for slot in SLOTS if not any(slot in hours for hours in calendars.values())]
        if free:
            break
    names = " and ".join(group)
    return Task(
        id=f"meeting-{index}",
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"A meeting of {names}, please."},
        ),
        fields={"calendars": calendars, "people": list(group), "answer": free[0]},
    )
