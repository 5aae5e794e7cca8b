"""A grid room: fetch the key, open the door, reach the vault. One step of the walk is one call."""

from __future__ import annotations

import random
from typing import Literal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

MAX_STEPS = 14
MOVES = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}


FIRST_NUMBER = {"train": 1000, "validation": 4000, "held_out": 7000}
"""Of the requests of a split; each has a number of its own."""


class VaultGrid(Environment):
    """A wall with one door divides the room. The key lies on the near side, the vault on the far side."""

    def reset(self, task: Task) -> None:
        fields = task.fields
        self._size: int = fields["size"]
        self._wall: int = fields["wall"]
        self._at, self._key, self._door, self._vault = (
            tuple(fields[name]) for name in ("start", "key", "door", "vault")
        )
        self._has_key = self._is_open = False
        self._steps = 0

    @property
    def is_done(self) -> bool:
        return self._at == self._vault or self._steps >= MAX_STEPS

    @tool
    def look(self) -> dict[str, int | bool | list[int]]:
        """The room: its size, and where you, key, door and vault are, as [row, column]; the door stands in the wall."""
        return {
            "size": self._size, "wall_column": self._wall, "you": list(self._at), "key": list(self._key),
            "door": list(self._door), "vault": list(self._vault), "has_key": self._has_key,
        }  # fmt: skip

    @tool
    def step(self, direction: Literal["north", "south", "west", "east"]) -> str:
        """Walk one field. The key is picked up by stepping on it; with it, the door opens by itself.

        Args:
            direction: where to; north is row minus one, west is column minus one
        """
        if self.is_done:
            raise ToolFailure("the walk is over")
        self._steps += 1
        row, column = (self._at[0] + MOVES[direction][0], self._at[1] + MOVES[direction][1])
        if not (0 <= row < self._size and 0 <= column < self._size):
            return "a wall of the room is in the way"
        if column == self._wall and (row, column) != self._door:
            return "the wall is in the way"
        if (row, column) == self._door and not self._has_key:
            return "the door is locked"
        self._at = (row, column)
        if self._at == self._key and not self._has_key:
            self._has_key = True
            return f"you are at {row}, {column} and have the key"
        return f"you are at {row}, {column}" + (": the vault" if self._at == self._vault else "")

    def final_state(self) -> dict[str, list[int] | bool]:
        return {"at": list(self._at), "has_key": self._has_key}


def reward(trajectory: Trajectory) -> float:
    """1 for reaching the vault, 0.3 for the key alone."""
    state = trajectory.final_state or {}
    if state.get("at") == list(trajectory.task.fields["vault"]):
        return 1.0
    return 0.3 if state.get("has_key") else 0.0


def scorer(trajectory: Trajectory) -> float:
    """1 when the last step of the walk ended at the vault."""
    steps = [one for one in trajectory.transitions if one["tool"] == "step" and one["error"] is None]
    return float(bool(steps) and str(steps[-1]["result"]).endswith(": the vault"))


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"vault-{split}-{number}")
    size = 5 + number % 4
    wall = rng.randint(2, size - 2)
    near = [(row, column) for row in range(size) for column in range(wall)]
    far = [(row, column) for row in range(size) for column in range(wall + 1, size)]
    start, key = rng.sample(near, 2)
    vault, door = rng.choice(far), (rng.randrange(size), wall)
    prompt = (
        f"You are in room {FIRST_NUMBER[split] + number}, of {size} by {size} fields, at row {start[0]} and column {start[1]}. Fetch the key, go through the "
        f"door and reach the vault at row {vault[0]} and column {vault[1]}. Look around first, then walk."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={
            "size": size,
            "wall": wall,
            "start": list(start),
            "key": list(key),
            "door": list(door),
            "vault": list(vault),
        },
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
