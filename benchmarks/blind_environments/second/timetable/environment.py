"""The timetable of a school: who teaches a class at an hour, and in which room."""

from __future__ import annotations

import random
from typing import Annotated, Literal

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

Day = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
SUBJECTS = ("physics", "music", "history", "French", "biology", "art", "algebra", "sports")
TEACHERS = "Abel Boone Curie Dickens Euler Fermi Gauss Hertz Ibsen Joule Kepler Lovelace Mendel Noether".split()
SYSTEM = """You answer questions about a school's timetable. The timetable names subject and teacher of a lesson; a teacher always teaches
in the same room, unless the list of substitutions names another teacher for the class on that day: then the lesson is with that teacher,
in that teacher's room. Answer with teacher and room:
<final_output>{"teacher":"","room":0}</final_output>"""


class Timetable(Environment):
    def reset(self, task: Task) -> None:
        self.lessons: dict[str, list[list[str]]] = task.fields["lessons"]
        self.rooms: dict[str, int] = task.fields["rooms"]
        self.substitutions: list[list[str]] = task.fields["substitutions"]

    @tool
    def lessons_of(self, day: Day) -> list[dict[str, str | int]]:
        """The lessons of the class on a day: hour, subject, teacher."""
        return [
            {"hour": hour, "subject": subject, "teacher": teacher}
            for hour, (subject, teacher) in enumerate(self.lessons[day], start=1)
        ]

    @tool
    def substitutions_on(self, day: Day) -> list[dict[str, str]]:
        """Teachers who are absent on a day, and who teaches in their place."""
        return [{"absent": absent, "instead": instead} for on, absent, instead in self.substitutions if on == day]

    @tool
    def room_of(self, teacher: Annotated[str, Bounded(max_length=40)]) -> int:
        """The room of a teacher."""
        if teacher not in self.rooms:
            raise ToolFailure(f"no teacher is called {teacher}")
        return self.rooms[teacher]


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num: int = 40, seed: int = 7) -> list[Task]:
    return _tasks("train", num, seed)


def held_out_tasks(num: int = 16, seed: int = 7) -> list[Task]:
    return _tasks("held-out", num, seed)


def _tasks(split: str, num: int, seed: int) -> list[Task]:
    rng = random.Random(seed)
    return [_task(f"{split}-{index}", rng) for index in range(num)]


def _task(name: str, rng: random.Random) -> Task:
    teachers = rng.sample(TEACHERS, 8)
    rooms = dict(zip(teachers, rng.sample(range(100, 400), 8), strict=True))
    taught_by = dict(zip(SUBJECTS[:6], teachers[:6], strict=True))
    lessons = {day: [[subject, taught_by[subject]] for subject in rng.sample(SUBJECTS[:6], 4)] for day in DAYS}
    substitutions = []
    for day in rng.sample(DAYS, 3):
        absent = rng.choice([teacher for _, teacher in lessons[day]])
        substitutions.append([day, absent, rng.choice(teachers[6:])])
    day = rng.choice(DAYS if rng.random() < 0.4 else [on for on, _, _ in substitutions])
    hour = rng.randint(1, 4)
    subject, teacher = lessons[day][hour - 1]
    instead = {absent: other for on, absent, other in substitutions if on == day}
    final = instead.get(teacher, teacher)
    school_class = f"{rng.randint(5, 12)}{rng.choice('abcd')}"
    user = f"Class {school_class} has {subject} on {day} in hour {hour}. With whom is it, and where?"
    return Task(
        id=f"timetable-{name}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
        fields={
            "lessons": lessons,
            "rooms": rooms,
            "substitutions": substitutions,
            "asked": [day, hour],
            "answer": {"teacher": final, "room": rooms[final]},
        },
        seed=0,
    )
