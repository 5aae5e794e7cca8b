"""A court's docket: find the judge and the room of a hearing."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

JUDGES = ["Abbott", "Boyd", "Castle", "Dunn", "Ellis"]
MATTERS = ["theft", "lease", "custody", "libel", "patent", "debt"]


def docket() -> list[dict]:
    """The one docket that all tasks ask about."""
    rng = random.Random(1790)
    return [
        {
            "case": f"{rng.choice('CKPR')}-{100 + n}",
            "matter": rng.choice(MATTERS),
            "judge": rng.choice(JUDGES),
            "room": rng.randint(1, 30),
        }
        for n in range(200)
    ]


HEARINGS = {hearing["case"]: hearing for hearing in docket()}


class Docket(Environment):
    @tool
    def hearing(self, case: str) -> dict[str, str]:
        """Matter, judge and room of a case, by its number such as K-104."""
        found = HEARINGS.get(case)
        if found is None:
            return {"error": "no such case"}
        return {"matter": found["matter"], "judge": found["judge"], "room": str(found["room"])}


def reward(trajectory: Trajectory) -> float:
    """1 for the judge and the room in the form that the clerk asks for."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    return float((last.get("content") or "").strip() == trajectory.task.fields["answer"])


def scorer(trajectory: Trajectory) -> float:
    last = trajectory.messages[-1]
    hearing = HEARINGS[trajectory.task.fields["case"]]
    said = (last.get("content") or "") if last["role"] == "assistant" else ""
    parts = [part.strip() for part in said.split(",")]
    return float(parts == [hearing["judge"], str(hearing["room"])])


def _task(case: str) -> Task:
    hearing = HEARINGS[case]
    text = f"Who hears case {case}, and in which room? Answer as: Judge, room number. For example: Frost, 31"
    return Task(
        id=case,
        messages=({"role": "user", "content": text},),
        fields={"case": case, "answer": f"{hearing['judge']}, {hearing['room']}"},
    )


def train_tasks() -> list[Task]:
    return [_task(case) for index, case in enumerate(HEARINGS) if index % 5 < 4]


def held_out_tasks() -> list[Task]:
    return [_task(case) for index, case in enumerate(HEARINGS) if index % 5 >= 3]
