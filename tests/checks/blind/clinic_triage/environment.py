"""Triage in a walk-in clinic, from the readings that the nurse's device exported to readings.csv."""

import csv
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

PRIORITIES = ("measure_again", "urgent", "routine")
PROCEDURE = """\
Triage. reading gives pulse, pressure (upper value) and temperature of a patient. limits gives the limits of an age group:
child (under 14), adult, or senior (from 65 on).
- A value that the group's limits name is missing: measure_again.
- Else, a value is above its limit: urgent.
- Else: routine.
Write nothing but <priority>...</priority> with measure_again, urgent or routine inside."""

LIMITS = {
    "child": {"pulse": 130, "temperature": 38.5},
    "adult": {"pulse": 110, "pressure": 170},
    "senior": {"pulse": 100, "pressure": 160},
}
MEASURED = ("pulse", "pressure", "temperature")


def _rows() -> list[dict[str, str]]:
    with open(Path(__file__).parent / "readings.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _number(cell: str) -> float:
    return float(cell) if cell else float("nan")


class Triage(Environment):
    def reset(self, task: Task) -> None:
        self.patient = task.fields["patient"]
        self.record = {name: _number(task.fields["cells"][name]) for name in MEASURED}

    @tool
    def reading(self, patient: str) -> str:
        """What was measured of a patient, as JSON."""
        if patient != self.patient:
            return json.dumps({"error": f"patient {patient} is not in the waiting room"})
        return json.dumps({"patient": patient, **self.record})

    @tool
    def limits(self, group: str) -> str:
        """Upper limits of an age group, as JSON."""
        return json.dumps(LIMITS.get(group, {"error": "the groups are child, adult and senior"}))

    def demonstrate(self, task: Task) -> Sequence[Message]:
        group = age_group(task.fields["age"])
        calls = [tool_call("reading", patient=task.fields["patient"]), tool_call("limits", group=group)]
        return [*calls, answer(f"<priority>{task.fields['priority']}</priority>")]


def age_group(age: int) -> str:
    if age < 14:
        return "child"
    return "senior" if age >= 65 else "adult"


def priority(age: int, cells: dict[str, str]) -> str:
    limits = LIMITS[age_group(age)]
    if any(not cells[name] for name in limits):
        return "measure_again"
    return "urgent" if any(float(cells[name]) > limit for name, limit in limits.items()) else "routine"


def reward(trajectory: Trajectory) -> Reward:
    message = trajectory.messages[-1]
    found = re.fullmatch(r"<priority>(\w+)</priority>", str(message.get("content") or "").strip())
    given = found.group(1) if found and message["role"] == "assistant" else None
    form, right = float(given in PRIORITIES), float(given == trajectory.task.fields["priority"])
    return Reward(total=0.1 * form + 0.9 * right, components={"form": 0.1 * form, "right": 0.9 * right})


def scorer(trajectory: Trajectory) -> float:
    last = trajectory.messages[-1]
    wanted = f"<priority>{trajectory.task.fields['priority']}</priority>"
    return float(last["role"] == "assistant" and str(last.get("content")).strip() == wanted)


def train_tasks() -> list[Task]:
    return _tasks("train")


def validation_tasks() -> list[Task]:
    return _tasks("validation")


def held_out_tasks() -> list[Task]:
    return _tasks("held_out")


def _tasks(split: str) -> list[Task]:
    return [_task(row) for row in _rows() if row["split"] == split]


def _task(row: dict[str, str]) -> Task:
    cells, age = {name: row[name] for name in MEASURED}, int(row["age"])
    arrival = random.Random(row["patient"]).choice(("walked in", "came by taxi", "was brought by a neighbour"))
    text = f"{row['patient']}, {age} years old, {arrival} at {row['time']} because of {row['reason']}."
    return Task(
        id=row["patient"],
        messages=({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text}),
        fields={"patient": row["patient"], "age": age, "cells": cells, "priority": priority(age, cells)},
    )
