"""Dungeon: a text game with rooms in a row, locked doors, and keys that lie about."""

from __future__ import annotations

import random
from typing import Literal

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

COLORS = ["red", "blue", "green", "brass", "iron", "ivory", "black", "white"]
PLACES = ["cellar", "hall", "chapel", "kitchen", "library", "armory", "crypt", "tower", "stable", "well"]
INSTRUCTIONS = (
    "You are in a row of rooms. `look` describes the room you are in, `move` goes east or west, `pick_up` takes the key that lies "
    "in the room. A locked door opens by itself for who carries the key of its color. Find the room with the treasure and call "
    "`open_chest` there; the game ends with that."
)


class Dungeon(Environment):
    def reset(self, task: Task) -> None:
        self.rooms, self.doors, self.keys = task.fields["rooms"], task.fields["doors"], dict(task.fields["keys"])
        self.at, self.carried, self.opened = 0, [], False

    @tool
    def look(self) -> str:
        """Describe the room."""
        text = f"This is the {self.rooms[self.at]}."
        if self.at > 0:
            text += " There is a door to the west."
        if self.at < len(self.rooms) - 1:
            color = self.doors[self.at]
            text += f" There is a {color} locked door to the east." if color else " There is a door to the east."
        if key := self.keys.get(self.rooms[self.at]):
            text += f" A {key} key lies here."
        return text + (" There is a treasure chest." if self.at == len(self.rooms) - 1 else "")

    @tool
    def move(self, direction: Literal["east", "west"]) -> str:
        """Go through the door to the east or to the west."""
        to = self.at + (1 if direction == "east" else -1)
        if not 0 <= to < len(self.rooms):
            return "There is no door on that side."
        color = self.doors[min(to, self.at)]
        if color and color not in self.carried:
            return f"The door is locked, and you have no {color} key."
        self.at = to
        return self.look()

    @tool
    def pick_up(self) -> str:
        """Take the key that lies in the room."""
        key = self.keys.pop(self.rooms[self.at], None)
        if key is None:
            return "There is no key here."
        self.carried.append(key)
        return f"You have the {key} key."

    @tool
    def open_chest(self) -> str:
        """Open the treasure chest, which ends the game."""
        if self.at < len(self.rooms) - 1:
            return "There is no chest here."
        self.opened = True
        return "The chest is open. You win."

    @property
    def is_done(self) -> bool:
        return self.opened


def reward(trajectory: Trajectory) -> float:
    return float(any(call["result"] == "The chest is open. You win." for call in trajectory.transitions))


def scorer(trajectory: Trajectory) -> float:
    last = trajectory.transitions[-1] if trajectory.transitions else None
    return 1.0 if last is not None and last["tool"] == "open_chest" and "You win" in last["result"] else 0.0


def train_tasks() -> list[Task]:
    return _tasks()[:40]


def held_out_tasks() -> list[Task]:
    return _tasks()[40:]


def _tasks() -> list[Task]:
    return [_task(index, random.Random(f"dungeon-{index}")) for index in range(52)]


def _task(index: int, rng: random.Random) -> Task:
    rooms = rng.sample(PLACES, rng.randint(4, 6))
    doors: list[str | None] = [None] * (len(rooms) - 1)
    keys = {}
    colors = rng.sample(COLORS, 2)
    for color, door in zip(colors, sorted(rng.sample(range(1, len(doors)), 2)), strict=True):
        doors[door] = color
        # A room that has no key yet.
        keys[rng.choice([room for room in rooms[:-1] if room not in keys])] = color
    question = f"You wake up in the {rooms[0]} of dungeon {index}. Find the treasure."
    return Task(
        id=f"dungeon-{index}",
        messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}),
        fields={"rooms": rooms, "doors": doors, "keys": keys},
    )
