"""A clinic's calendar of one day, 08:00 to 17:00, in minutes after midnight inside and hh:mm outside."""

from __future__ import annotations

import random

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Outcome, Task

OPENS, CLOSES, STEP = 8 * 60, 17 * 60, 30


def clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def minute_of(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


class Clinic(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.diary: list[tuple[int, int, str]] = [tuple(entry) for entry in task.fields["diary"]]

    @tool
    def free_slots(self) -> list[str]:
        """Half hours of the day in which the doctor has no appointment, as the times when they begin.

        An appointment may be longer than half an hour.
        """
        taken = {start for start, _, _ in self.diary}
        return [clock(start) for start in range(OPENS, CLOSES, STEP) if start not in taken]

    @tool
    def book(self, patient: str, at: str) -> str:
        """Book half an hour for a patient.

        Args:
            patient: family name
            at: when it begins, hh:mm, on the half hour
        """
        start = minute_of(at)
        if start % STEP or not OPENS <= start < CLOSES:
            raise ToolFailure(f"{at} is not a half hour of the opening times")
        if clock(start) not in self.free_slots():
            raise ToolFailure(f"{clock(start)} is taken")
        self.diary.append((start, STEP, patient))
        return f"{patient} comes at {clock(start)}"

    def final_state(self) -> dict[str, list[str]]:
        return {"diary": sorted(f"{clock(start)} +{length} {who}" for start, length, who in self.diary)}


scorer = state_difference("after")


def reward(trajectory) -> float:
    """All or nothing: the patient has the slot and the rest of the diary is as before."""
    if trajectory.outcome is not Outcome.FINISHED or trajectory.final_state is None:
        return 0.0
    return 1.0 if trajectory.final_state["diary"] == trajectory.task.fields["after"]["diary"] else 0.0


PATIENTS = [
    "Adler",
    "Brandt",
    "Celik",
    "Doyle",
    "Engel",
    "Fiala",
    "Gomez",
    "Horvat",
    "Iqbal",
    "Jung",
    "Keller",
    "Lopes",
]


def _day(rng: random.Random) -> list[tuple[int, int, str]]:
    diary, now = [], OPENS
    people = rng.sample(PATIENTS[:8], 8)
    while now < CLOSES - 120 and people:
        if rng.random() < 0.75:
            length = STEP * rng.choice([1, 1, 2, 2, 3])
            diary.append((now, length, people.pop()))
            now += length
        else:
            now += STEP
    return diary


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"clinic:{split}:{index}")
    diary = _day(rng)
    busy = {minute for start, length, _ in diary for minute in range(start, start + length, STEP)}
    free = [start for start in range(OPENS, CLOSES, STEP) if start not in busy]
    after_hour = rng.choice(free[: max(1, len(free) - 3)]) // 60 * 60
    slot = next(start for start in free if start >= after_hour)
    patient = rng.choice(PATIENTS[8:])
    text = f"Letter of referral {rng.randint(10_000, 99_999)}: book {patient} into the first free half hour at {clock(after_hour)} or later, then answer 'booked'."
    after = sorted(f"{clock(start)} +{length} {who}" for start, length, who in [*diary, (slot, STEP, patient)])
    return Task(
        id=f"{split}-{index}",
        seed=index,
        messages=({"role": "user", "content": text},),
        fields={
            "diary": [list(entry) for entry in diary],
            "patient": patient,
            "from": clock(after_hour),
            "after": {"diary": after},
        },
    )


def train_tasks() -> list[Task]:
    return [_task("train", index) for index in range(32)]


def held_out_tasks() -> list[Task]:
    return [_task("held_out", index) for index in range(12)]
