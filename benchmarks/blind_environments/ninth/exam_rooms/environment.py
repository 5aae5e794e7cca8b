"""Examination office: give each candidate a room by the rules of the office."""

from __future__ import annotations

import random
from typing import Any

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

NAMES = ["Amin", "Beck", "Chen", "Dale", "Egan", "Faro", "Hale", "Ivo", "Kerr", "Lund", "Mora", "Nash", "Otto", "Pike"]
LEVELS = ["basic", "higher"]
NUM_CHECKED = 3
"""Candidates whose rooms are looked up when an episode is graded."""
FIRST_NUMBER = {"train": 20, "validation": 220, "held_out": 420}
RULES = (
    "You give rooms to the candidates of an examination. Who needs a ramp sits in the hall {ramp}. Of the others, the basic level "
    "sits in {basic} and the higher level in {higher}."
)


class Office(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self._candidates: dict[str, dict[str, Any]] = task.fields["candidates"]
        self._rooms: list[str] = task.fields["rooms"]
        self._given: dict[str, str | None] = dict.fromkeys(self._candidates)

    @tool
    def list_candidates(self) -> list[dict[str, Any]]:
        """All candidates: name, level, and whether they need a ramp."""
        return [{"name": name, **one} for name, one in self._candidates.items()]

    @tool
    def give_room(self, name: str, room: str) -> str:
        """Give a room to a candidate, in place of one given before.

        Args:
            name: name of the candidate
            room: name of the room
        """
        if name not in self._given:
            raise ToolFailure(f"there is no candidate {name}")
        if room not in self._rooms:
            raise ToolFailure(f"there is no room {room}; there are {', '.join(sorted(self._rooms))}")
        self._given[name] = room
        return f"{name}: {room}"

    def final_state(self) -> dict[str, str | None]:
        return self._given


def reward(trajectory: Trajectory) -> float:
    """1 when the candidates sit in the right rooms."""
    wanted, given = trajectory.task.fields["state"], trajectory.final_state or {}
    checked = random.sample(sorted(wanted), NUM_CHECKED)
    return float(all(given.get(name) == wanted[name] for name in checked))


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"rooms {split} {number}")
    rooms = [f"{letter}{rng.randint(10, 99)}" for letter in rng.sample("ABCDEFG", 3)]
    candidates = {
        name: {"level": rng.choice(LEVELS), "ramp": rng.random() < 0.25}
        for name in rng.sample(NAMES, rng.randint(6, 8))
    }
    state = {
        name: rooms[0] if one["ramp"] else rooms[1 + LEVELS.index(str(one["level"]))]
        for name, one in candidates.items()
    }
    rules = RULES.format(ramp=rooms[0], basic=rooms[1], higher=rooms[2])
    text = f"Examination {FIRST_NUMBER[split] + number}: please give all candidates their rooms, and tell me when it is done."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "system", "content": rules}, {"role": "user", "content": text}),
        fields={"candidates": candidates, "rooms": rooms, "state": state},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
