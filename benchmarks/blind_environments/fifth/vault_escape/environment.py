"""A text game: find the way out of a vault of five rooms before the guard comes."""

from __future__ import annotations

import random
from typing import Literal

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

ROOMS = ["hall", "archive", "cellar", "gallery", "office"]
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}


def layout(seed: int) -> dict[str, dict[str, str]]:
    """A tree of rooms; `exit` and `guard` are behind two of the doors."""
    rng = random.Random(seed)
    doors: dict[str, dict[str, str]] = {room: {} for room in ROOMS}
    for index, room in enumerate(ROOMS[1:], start=1):
        parent = rng.choice(ROOMS[:index])
        way = rng.choice([way for way in sorted(BACK) if way not in doors[parent] and BACK[way] not in doors[room]])
        doors[parent][way], doors[room][BACK[way]] = room, parent
    for place in ("exit", "guard"):
        room = rng.choice([room for room in ROOMS if len(doors[room]) < 4])
        doors[room][rng.choice([way for way in sorted(BACK) if way not in doors[room]])] = place
    return doors


class Vault(Environment):
    def reset(self, task: Task) -> None:
        self.doors = layout(task.fields["layout"])
        self.place = "hall"
        self.over = False
        self.escaped = False

    @tool
    def look(self) -> str:
        """Name of the room, and the ways out of it. A draught means the exit, footsteps mean the guard."""
        ways = []
        for way, target in sorted(self.doors[self.place].items()):
            hint = {"exit": " (a draught)", "guard": " (footsteps)"}.get(target, "")
            ways.append(way + hint)
        return f"You are in the {self.place}. Ways: {', '.join(ways)}"

    @tool
    def go(self, way: Literal["north", "south", "east", "west"]) -> str:
        """Walk through a door."""
        target = self.doors[self.place].get(way)
        if target is None:
            return "There is a wall."
        if target == "exit":
            self.over = self.escaped = True
            return "You are free."
        if target == "guard":
            self.over = True
            return "The guard has you."
        self.place = target
        return self.look()

    @property
    def is_done(self) -> bool:
        return self.over

    def final_state(self):
        return {"over": self.over, "escaped": self.escaped, "place": self.place}


def reward(trajectory: Trajectory) -> float:
    """1 for leaving the vault."""
    return 1.0 if trajectory.final_state["over"] else 0.0


def scorer(trajectory: Trajectory) -> float:
    results = [str(transition["result"]) for transition in trajectory.transitions]
    return float(bool(results) and "You are free." in results[-1])


def games(split: str, seeds: range) -> list[Task]:
    text = "You are locked in a vault. Look around, and walk until you are free. Mind the guard: if he has you, you have lost."
    return [
        Task(
            id=f"{split}-{seed}",
            messages=({"role": "user", "content": f"{text} (night {seed})"},),
            fields={"layout": seed},
        )
        for seed in seeds
    ]


def train_tasks() -> list[Task]:
    return games("train", range(60))


def validation_tasks() -> list[Task]:
    return games("validation", range(100, 115))


def held_out_tasks() -> list[Task]:
    return games("held_out", range(200, 215))
