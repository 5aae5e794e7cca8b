"""Tide tables of harbours, as the hydrographic office answered when they were recorded."""

from __future__ import annotations

import calendar
import random
import re
from typing import Any

from sparring.environments import Fixtures, ReplayEnvironment, replayed
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

YEAR = 2025
MONTHS = {"March": 3, "April": 4, "May": 5}
HARBOURS = {
    "train": ["Aldby", "Brack", "Corrie", "Dunne", "Eyot", "Fosse", "Garrow", "Hythe"],
    "validation": ["Inver", "Jura", "Kyle", "Lamb"],
    "held_out": ["Moyle", "Naze", "Orford", "Porlock"],
}
ENQUIRIES = {"train": "E1", "validation": "E2", "held_out": "E3"}


def tides(harbour: str, month: int, day: int) -> list[dict[str, Any]]:
    """High waters of a day: time and height in centimetres."""
    rng = random.Random(f"tides {harbour} {month} {day}")
    early, late = rng.randint(20, 640), rng.randint(760, 1420)
    return [
        {"time": f"{minute // 60:02}:{minute % 60:02}", "height": height}
        for minute, height in zip((early, late), rng.sample(range(310, 690), 2), strict=True)
    ]


def recorded() -> list[dict[str, Any]]:
    """One row for each harbour and day."""
    return [
        {
            "tool": "high_waters",
            "arguments": {"harbour": harbour, "month": month, "day": day},
            "result": tides(harbour, month, day),
        }
        for harbours in HARBOURS.values()
        for harbour in harbours
        for month in MONTHS.values()
        for day in range(1, calendar.monthrange(YEAR, month)[1])
    ]


class TideTables(ReplayEnvironment):
    fixtures = Fixtures(recorded())

    @replayed
    def high_waters(self, harbour: str, month: int, day: int) -> list[dict[str, Any]]:
        """High waters of a day in 2025: time and height in centimetres.

        Args:
            harbour: name of the harbour
            month: 1 to 12
            day: day of the month
        """


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
    """1 for the right answer."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def make_task(split: str, number: int) -> Task:
    harbours = HARBOURS[split]
    harbour, month = harbours[number % len(harbours)], list(MONTHS)[number // len(harbours) % len(MONTHS)]
    days = calendar.monthrange(YEAR, MONTHS[month])[1]
    day = days if number % 5 == 2 else 1 + number * 11 % (days - 1)
    best = max(tides(harbour, MONTHS[month], day), key=lambda tide: tide["height"])
    if number % 2:
        question, answer = "At what time is the higher of the two high waters", best["time"]
        form = "the time, as in <answer>06:05</answer>"
    else:
        question, answer = "How high is the higher of the two high waters", str(best["height"])
        form = "the centimetres, as in <answer>405</answer>"
    text = f"Enquiry {ENQUIRIES[split]}{number:02}. {question} in {harbour} on {day} {month} 2025? End with {form}."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"harbour": harbour, "month": MONTHS[month], "day": day, "answer": answer},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
