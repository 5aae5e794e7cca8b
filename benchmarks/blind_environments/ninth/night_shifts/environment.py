"""Working time of night guards: how many minutes did somebody work in a month?"""

from __future__ import annotations

import random
import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

ZONE = ZoneInfo("Europe/Vienna")
GUARDS = ["Aydin", "Berger", "Costa", "Dvorak", "Eder", "Fischer", "Gruber", "Hollos"]
CLOCK_CHANGES = {3: (2024, 3, 30), 10: (2024, 10, 26)}
"""Evening before the night in which the clocks change, by month."""
FIRST_NUMBER = {"train": 100, "validation": 400, "held_out": 700}


class TimeSheets(Environment):
    def reset(self, task: Task) -> None:
        self._shifts: dict[str, dict[str, str]] = task.fields["shifts"]

    @tool
    def shifts_of(self, guard: str) -> list[str]:
        """Numbers of all shifts of a guard in the month.

        Args:
            guard: family name
        """
        return [number for number, shift in self._shifts.items() if shift["guard"] == guard]

    @tool
    def shift(self, number: str) -> dict[str, str]:
        """One shift: guard, start and end in local time with the offset from UTC.

        Args:
            number: number of the shift
        """
        if number not in self._shifts:
            raise ToolFailure(f"there is no shift {number}")
        return self._shifts[number]


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
    """1 for the right number of minutes."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def minutes(start: datetime, end: datetime) -> int:
    """Minutes that went by between two local times."""
    return int((end - start).total_seconds()) // 60


def evening(rng: random.Random, month: int, day: int) -> tuple[datetime, datetime]:
    """Start and end of a night shift that begins on this day."""
    start = datetime(2024, month, day, rng.randint(19, 22), rng.choice([0, 15, 30, 45]), tzinfo=ZONE)
    end = datetime(2024, month, day, rng.randint(5, 7), rng.choice([0, 15, 30, 45]), tzinfo=ZONE) + timedelta(days=1)
    return start, end


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"guards {split} {number}")
    guard, *others = rng.sample(GUARDS, 3)
    changes = number % 6 in (1, 5)
    month = rng.choice(sorted(CLOCK_CHANGES)) if changes else rng.choice([1, 2, 4, 5, 6, 7, 8, 9, 11, 12])
    days = rng.sample(range(2, 24), 4)
    if changes:
        days[rng.randrange(4)] = CLOCK_CHANGES[month][2]
    own = [evening(rng, month, day) for day in sorted(days)]
    rows = [(guard, *times) for times in own]
    rows += [(other, *evening(rng, month, rng.randint(2, 24))) for other in others for _ in range(2)]
    rng.shuffle(rows)
    first = rng.randint(100, 800)
    shifts = {
        f"S{first + place}": {
            "guard": name,
            "start": start.isoformat("T", "minutes"),
            "end": end.isoformat("T", "minutes"),
        }
        for place, (name, start, end) in enumerate(rows)
    }
    text = (
        f"Pay slip {FIRST_NUMBER[split] + number}. How many minutes did {guard} work in all, over all shifts of the month? We pay "
        "the time that really went by, also in the nights in which the clocks change. End with the number, as in "
        "<answer>1815</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"shifts": shifts, "guard": guard, "answer": str(sum(minutes(*times) for times in own))},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
