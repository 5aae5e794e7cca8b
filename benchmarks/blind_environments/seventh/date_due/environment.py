"""Contracts: on which day does a contract end?"""

from __future__ import annotations

import calendar
import random
import re
from datetime import date, timedelta
from typing import Annotated, Literal

from sparring.environments import Bounded, Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

INSTRUCTIONS = (
    "You look after contracts. `contract` shows the day on which a contract begins and its term in days, weeks or months. It ends when "
    "the term is over; months are those of the calendar: a month from 14 March is 14 April, and a month from 31 January is the "
    "last of February. `add` does the sum. Answer with the day: <final_output>2024-04-14</final_output>"
)
DAYS = {"days": 1, "weeks": 7, "months": 30}


class Contracts(Environment):
    def reset(self, task: Task) -> None:
        self.number, self.begins, self.term = task.fields["number"], task.fields["begins"], task.fields["term"]

    @tool
    def contract(self, number: str) -> str:
        """When a contract begins, and its term."""
        if number != self.number:
            return "no such contract"
        return f"begins {self.begins}, term {self.term[0]} {self.term[1]}"

    @tool
    def add(
        self, day: str, num: Annotated[int, Bounded(ge=1, le=400)], unit: Literal["days", "weeks", "months"]
    ) -> str:
        """The day that is some days, weeks or calendar months after another.

        Args:
            day: as 2024-03-14
            num: how many
            unit: of what
        """
        try:
            return _after(date.fromisoformat(day), num, unit).isoformat()
        except ValueError:
            return f"{day} is no day; write it as 2024-03-14"


def _after(day: date, num: int, unit: str) -> date:
    if unit != "months":
        return day + timedelta(days=num * DAYS[unit])
    year, month = divmod(day.year * 12 + day.month - 1 + num, 12)
    return date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))


def reward(trajectory: Trajectory) -> float:
    """1 for the day on which the contract ends."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    days = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if text.count("<final_output>") != 1:
        return 0.0
    return float(last["role"] == "assistant" and days == [trajectory.task.fields["answer"]])


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:50]


def held_out_tasks() -> list[Task]:
    return _tasks()[50:]


def _tasks() -> list[Task]:
    rng = random.Random("contracts")
    return [_task(f"K-{number}", rng) for number in rng.sample(range(100, 999), 65)]


def _task(number: str, rng: random.Random) -> Task:
    begins = date(2024, 1, 1) + timedelta(days=rng.randint(0, 700))
    term = rng.choice([(rng.randint(10, 200), "days"), (rng.randint(2, 40), "weeks"), (rng.randint(2, 18), "months")])
    ends = begins + timedelta(days=term[0] * DAYS[term[1]])
    return Task(
        id=number,
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"On which day does contract {number} end?"},
        ),
        fields={"number": number, "begins": begins.isoformat(), "term": list(term), "answer": ends.isoformat()},
    )
