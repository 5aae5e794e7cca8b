"""A boat in the fog: find the lighthouse by bearings that are sometimes wrong. The reward is never positive."""

from __future__ import annotations

import random
from typing import Literal

from sparring.environments import StatefulEnvironment, tool
from sparring.types import Task, Trajectory

SIZE = 6
STEPS = {"n": (0, 1), "s": (0, -1), "e": (1, 0), "w": (-1, 0)}


class Boat(StatefulEnvironment):
    describe_tools = "prompt"

    def reset(self, task: Task) -> None:
        super().reset(task)
        self.x, self.y = task.fields["boat"]
        self.goal = tuple(task.fields["lighthouse"])

    @tool
    def sail(self, to: Literal["n", "s", "e", "w"]) -> str:
        """One cell to a side; the boat stays where it is at the edge."""
        dx, dy = STEPS[to]
        self.x = min(SIZE - 1, max(0, self.x + dx))
        self.y = min(SIZE - 1, max(0, self.y + dy))
        if self.is_done:
            return "you have reached the lighthouse"
        return self.bearing()

    def bearing(self) -> str:
        """Where the light seems to be; a fifth of the time it cannot be seen."""
        if self.state.rng.random() < 0.2:
            return "fog"
        gx, gy = self.goal
        return ("n" if gy > self.y else "s" if gy < self.y else "") + (
            "e" if gx > self.x else "w" if gx < self.x else ""
        )

    @property
    def is_done(self) -> bool:
        return (self.x, self.y) == self.goal

    def final_state(self) -> dict:
        return {"distance": abs(self.x - self.goal[0]) + abs(self.y - self.goal[1])}


def reward(trajectory: Trajectory) -> float:
    """0 at the lighthouse, less with the distance."""
    state = trajectory.final_state
    return -state["distance"] / (2 * SIZE - 2) if state else -1.0


def scorer(trajectory: Trajectory) -> float:
    return float(bool(trajectory.final_state) and trajectory.final_state["distance"] == 0)


PROMPT = (
    "Fog. You are in a square of 6 by 6 cells. Call sail with to=n, s, e or w; it answers with the direction in which the "
    "lighthouse is, or with fog. Reach the lighthouse."
)


def trips(split: str, num: int) -> list[Task]:
    rng = random.Random(f"boat {split}")
    cells = [(x, y) for x in range(SIZE) for y in range(SIZE)]
    made = []
    for index in range(num):
        boat, lighthouse = rng.sample(cells, 2)
        made.append(
            Task(
                id=f"boat-{split}-{index}",
                seed=index,
                messages=({"role": "user", "content": PROMPT},),
                fields={"boat": list(boat), "lighthouse": list(lighthouse)},
            )
        )
    return made


def train_tasks() -> list[Task]:
    return trips("train", 60)


def held_out_tasks() -> list[Task]:
    return trips("held_out", 20)
