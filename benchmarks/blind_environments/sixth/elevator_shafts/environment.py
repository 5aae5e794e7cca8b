"""One elevator: bring all passengers to their floors."""

from __future__ import annotations

import random
from typing import Literal

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

FLOORS = 6


class Elevator(Environment):
    def reset(self, task: Task) -> None:
        self.floor = task.fields["at"]
        self.waiting = [dict(p) for p in task.fields["passengers"]]
        self.inside: list[dict] = []
        self.arrived: list[str] = []

    @tool
    def move(self, direction: Literal["up", "down"]) -> str:
        """Move the cabin one floor; those who have reached their floor get out."""
        step = 1 if direction == "up" else -1
        if not 1 <= self.floor + step <= FLOORS:
            return "error: the shaft ends here"
        self.floor += step
        out = [p["name"] for p in self.inside if p["to"] == self.floor]
        self.inside = [p for p in self.inside if p["to"] != self.floor]
        self.arrived += out
        return f"floor {self.floor}" + (f", {', '.join(out)} got out" if out else "")

    @tool
    def open_doors(self) -> str:
        """Let those who wait at this floor get in."""
        new = [p for p in self.waiting if p["from"] == self.floor]
        self.waiting = [p for p in self.waiting if p["from"] != self.floor]
        self.inside += new
        return f"{len(new)} got in" if new else "there was no one"

    @property
    def is_done(self) -> bool:
        return not self.waiting and not self.inside

    def final_state(self) -> dict:
        return {"arrived": sorted(self.arrived)}


def _share(trajectory: Trajectory) -> float:
    names = {p["name"] for p in trajectory.task.fields["passengers"]}
    arrived = set((trajectory.final_state or {}).get("arrived", []))
    return len(names & arrived) / len(names)


def reward(trajectory: Trajectory) -> float:
    return float(_share(trajectory) == 1.0)


def scorer(trajectory: Trajectory) -> float:
    return _share(trajectory)


def _describe(passengers: list[dict]) -> str:
    return " ".join(f"{p['name']} waits on floor {p['from']} and goes to floor {p['to']}." for p in passengers)


def _tasks(seed: int, prefix: str, num: int) -> list[Task]:
    rng = random.Random(seed)
    tasks = []
    for index in range(num):
        passengers = []
        for name in rng.sample(["Ann", "Bob", "Cid", "Dee"], 2):
            start, goal = rng.sample(range(1, FLOORS + 1), 2)
            passengers.append({"name": name, "from": start, "to": goal})
        at = rng.randint(1, FLOORS)
        text = f"The elevator is on floor {at} of {FLOORS}. {_describe(passengers)} Bring both to their floors."
        tasks.append(
            Task(
                id=f"{prefix}{index}",
                messages=({"role": "user", "content": text},),
                fields={"at": at, "passengers": passengers},
            )
        )
    return tasks


def train_tasks() -> list[Task]:
    return _tasks(5, "train-", 70)


def held_out_tasks() -> list[Task]:
    return _tasks(6, "held-out-", 30)
