"""Pilot station: when does a ship enter the lock, in universal time?"""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta, timezone

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

SHIPS = ["Aurora", "Bounty", "Calypso", "Delfin", "Estrella", "Freya", "Grace", "Hermes"]
PORTS = {"Halifax": -4, "Piraeus": 2, "Mumbai": 5, "Santos": -3, "Busan": 9, "Dakar": 0}
"""Offset from universal time in hours."""
FIRST_NUMBER = {"train": 100, "validation": 300, "held_out": 500}


class Pilots(Environment):
    def reset(self, task: Task) -> None:
        self._calls: dict[str, dict[str, str | int]] = task.fields["calls"]

    @tool
    def port_call(self, ship: str) -> dict[str, str | int]:
        """Next call of a ship: port, local time at which the pilot boards, and minutes from there to the lock.

        Args:
            ship: name of the ship
        """
        if ship not in self._calls:
            raise ToolFailure(f"no call of {ship} is announced")
        return self._calls[ship]

    @tool
    def offset(self, port: str) -> int:
        """By how many hours the local time of a port is ahead of universal time; below zero where it is behind.

        Args:
            port: name of the port
        """
        if port not in PORTS:
            raise ToolFailure(f"there is no port {port}")
        return PORTS[port]


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
    """1 for the right minute."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def lock_time(call: dict[str, str | int]) -> str:
    """Universal time at which the ship reaches the lock."""
    zone = timezone(timedelta(hours=PORTS[str(call["port"])]))
    boarded = datetime.fromisoformat(str(call["pilot"])).replace(tzinfo=zone)
    return f"{(boarded + timedelta(minutes=int(call['minutes']))).astimezone(UTC):%Y-%m-%d %H:%M}"


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"pilots {split} {number}")
    calls = {
        ship: {
            "port": rng.choice(sorted(PORTS)),
            "pilot": f"2025-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} {rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
            "minutes": rng.randint(25, 190),
        }
        for ship in rng.sample(SHIPS, 4)
    }
    ship = rng.choice(list(calls))
    text = (
        f"Log line {FIRST_NUMBER[split] + number}: when does the {ship} reach the lock? The log is kept in universal time, not in the "
        "local time of the port, and the day may differ. End with day and time, as in <answer>2025-01-31 06:05</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"calls": calls, "ship": ship, "answer": lock_time(calls[ship])},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
