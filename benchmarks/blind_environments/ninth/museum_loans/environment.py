"""Loans between museums: until when is a work of art on loan?"""

from __future__ import annotations

import random
import re
from datetime import date, timedelta

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

WORKS = ["The Ferry", "Old Well", "Blue Horses", "Night Market", "Two Sisters", "Harvest", "The Toll Gate", "Snow Road"]
MUSEUMS = ["Leiden", "Basel", "Turin", "Malmo", "Dresden", "Lille"]
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
FIRST_NUMBER = {"train": 50, "validation": 250, "held_out": 450}


class Registrar(Environment):
    def reset(self, task: Task) -> None:
        self._loans: list[dict[str, str | int]] = task.fields["loans"]

    @tool
    def find_loans(self, work: str) -> list[str]:
        """Contracts by which a work is on loan.

        Args:
            work: title of the work
        """
        return [str(loan["contract"]) for loan in self._loans if loan["work"] == work]

    @tool
    def read_contract(self, contract: str) -> dict[str, str | int]:
        """A contract: work, museum that borrows it, day of the start, and weeks of the loan.

        Args:
            contract: number of the contract
        """
        for loan in self._loans:
            if loan["contract"] == contract:
                return {**loan, "start": shown(date.fromisoformat(str(loan["start"])))}
        raise ToolFailure(f"there is no contract {contract}")


CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)


def final_answer(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message. Code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", str(last.get("content") or ""))
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the right day."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def shown(day: date) -> str:
    """A day as the contracts write it: 3 Mar 2025."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"loans {split} {number}")
    loans = [
        {
            "contract": f"L{key}",
            "work": work,
            "museum": rng.choice(MUSEUMS),
            "start": (date(2025, 1, 6) + timedelta(days=rng.randint(0, 300))).isoformat(),
            "weeks": rng.randint(3, 20),
        }
        for key, work in zip(rng.sample(range(100, 999), 5), rng.sample(WORKS, 5), strict=True)
    ]
    loan = rng.choice(loans)
    due = date.fromisoformat(str(loan["start"])) + timedelta(weeks=int(loan["weeks"]))
    text = (
        f"Letter {FIRST_NUMBER[split] + number}: {loan['work']} is on loan in {loan['museum']}. On which day must it be back, counted "
        "in full weeks from the start? Close your reply with the day in answer tags: <answer>...</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"loans": loans, "contract": loan["contract"], "answer": due.isoformat()},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
