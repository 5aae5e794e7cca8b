"""When does the next bus leave? A timetable with a weekday, a Saturday and a Sunday schedule."""

from __future__ import annotations

import random
from datetime import date, timedelta

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

LINES = {"7": 20, "12": 15, "31": 30}
FIRST = {"weekday": 5 * 60, "saturday": 6 * 60 + 10, "sunday": 7 * 60 + 25}


def kind_of(day: date) -> str:
    return {5: "saturday", 6: "sunday"}.get(day.weekday(), "weekday")


def departures(line: str, kind: str) -> list[str]:
    step = LINES[line] if kind == "weekday" else 2 * LINES[line]
    minutes = range(FIRST[kind], 23 * 60, step)
    return [f"{m // 60:02d}:{m % 60:02d}" for m in minutes]


class Timetable(Environment):
    def reset(self, task: Task) -> None:
        pass

    @tool
    def weekday(self, day: str) -> str:
        """The day of the week of a date.

        Args:
            day: a date such as 2025-03-14
        """
        try:
            return date.fromisoformat(day).strftime("%A")
        except ValueError:
            return "error: write the date as YYYY-MM-DD"

    @tool
    def timetable(self, line: str, schedule: str) -> list[str]:
        """All departures of a line from the central station.

        Args:
            line: 7, 12 or 31
            schedule: weekday (Monday to Friday), saturday or sunday
        """
        if line not in LINES or schedule not in FIRST:
            return ["error: unknown line or schedule"]
        return departures(line, schedule)


def _final(trajectory: Trajectory) -> str:
    last = trajectory.messages[-1]
    return str(last.get("content") or "").strip() if last["role"] == "assistant" else ""


def reward(trajectory: Trajectory) -> float:
    return 1.0 if _final(trajectory) == trajectory.task.fields["answer"] else 0.0


def scorer(trajectory: Trajectory) -> float:
    return float(_final(trajectory).rstrip(".") == trajectory.task.fields["answer"])


def build(split: str, num: int) -> list[Task]:
    rng = random.Random(f"bus {split}")
    result = []
    for n in range(num):
        day = date(2025, 1, 1) + timedelta(days=rng.randrange(365))
        line = rng.choice(list(LINES))
        hour, minute = rng.randrange(6, 21), rng.randrange(60)
        at = f"{hour:02d}:{minute:02d}"
        kind = {5: "saturday", 6: "sunday"}.get(day.isoweekday(), "weekday")
        answer = next(t for t in departures(line, kind) if t >= at)
        text = (
            f"It is {at} on {day.isoformat()}. When does the next bus of line {line} leave the central station? "
            "A bus that leaves at this minute counts. Answer with the time only, as HH:MM."
        )
        result.append(
            Task(
                id=f"bus-{split}-{n}",
                messages=({"role": "user", "content": text},),
                fields={"answer": answer, "day": day.isoformat(), "line": line, "at": at},
            )
        )
    return result


def train_tasks() -> list[Task]:
    return build("train", 120)


def held_out_tasks() -> list[Task]:
    return build("held_out", 40)
