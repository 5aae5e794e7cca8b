"""Safe: work out its three digits by trying. Every task says the same; what differs is the safe."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

PROMPT = (
    "In front of you is a safe with three dials, each from 0 to 9. Turn a dial to a digit and listen: it says `low` when the "
    "right digit is higher, `high` when it is lower, and `click` when it is right. When all three dials are right, pull the handle."
)
TRIES = 16


class Safe(Environment):
    def reset(self, task: Task) -> None:
        self._code: list[int] = task.fields["code"]
        self._dials = [0, 0, 0]
        self._left = TRIES
        self._is_open = self._has_pulled = False

    @property
    def is_done(self) -> bool:
        return self._has_pulled

    @tool
    def turn(self, dial: Annotated[int, Bounded(ge=1, le=3)], digit: Annotated[int, Bounded(ge=0, le=9)]) -> str:
        """Turn a dial to a digit, and listen. After sixteen turns the dials are stuck.

        Args:
            dial: 1 is the left one
            digit: where to turn it
        """
        if self._left == 0:
            raise ToolFailure("the dials are stuck")
        self._left -= 1
        self._dials[dial - 1] = digit
        right = self._code[dial - 1]
        return "click" if digit == right else "low" if digit < right else "high"

    @tool
    def pull(self) -> str:
        """Pull the handle; this can be done once."""
        self._has_pulled = True
        self._is_open = self._dials == self._code
        return "the safe opens" if self._is_open else "the safe stays shut"

    def final_state(self) -> dict[str, bool | list[int]]:
        return {"open": self._is_open, "dials": self._dials}


def reward(trajectory: Trajectory) -> float:
    """1 for an open safe."""
    return float(bool((trajectory.final_state or {}).get("open")))


def scorer(trajectory: Trajectory) -> float:
    """1 when the last turn of each dial before the handle was pulled was to the right digit."""
    dials, right = [0, 0, 0], trajectory.task.fields["code"]
    for step in trajectory.transitions:
        if step["error"] is not None:
            continue
        if step["tool"] == "pull":
            return float(dials == list(right))
        dials[step["arguments"]["dial"] - 1] = step["arguments"]["digit"]
    return 0.0


def make_tasks(split: str, count: int, skip: int) -> list[Task]:
    """No two safes have the same digits, neither in a split nor between splits."""
    codes = [[code // 100, code // 10 % 10, code % 10] for code in range(100, 1000)]
    random.Random("safes").shuffle(codes)
    return [
        Task(
            id=f"{split}-{number}",
            messages=({"role": "user", "content": PROMPT},),
            fields={"code": code},
            seed=skip + number,
        )
        for number, code in enumerate(codes[skip : skip + count])
    ]


def train_tasks() -> list[Task]:
    return make_tasks("train", 128, 0)


def validation_tasks() -> list[Task]:
    return make_tasks("validation", 16, 200)


def held_out_tasks() -> list[Task]:
    return make_tasks("held_out", 48, 300)
