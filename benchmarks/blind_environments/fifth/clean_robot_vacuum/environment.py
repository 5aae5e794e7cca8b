"""A robot on a slippery floor; any way to the dock counts, and the floor moves it by the episode's own chance."""

from __future__ import annotations

from collections import deque
from typing import Literal

from sparring.environments import StatefulEnvironment, tool
from sparring.types import Task, Trajectory

STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
SIZE = 5


def cells(plan: str) -> list[str]:
    return plan.splitlines()


def find(plan: str, what: str) -> tuple[int, int]:
    return next((r, c) for r, line in enumerate(cells(plan)) for c, cell in enumerate(line) if cell == what)


def reachable(plan: str) -> bool:
    rows, seen, queue = cells(plan), set(), deque([find(plan, "@")])
    while queue:
        place = queue.popleft()
        if place in seen or not all(0 <= x < SIZE for x in place) or rows[place[0]][place[1]] == "#":
            continue
        seen.add(place)
        queue.extend((place[0] + dr, place[1] + dc) for dr, dc in STEPS.values())
    return find(plan, "D") in seen


class Floor(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.plan = cells(task.fields["plan"])
        self.place = find(task.fields["plan"], "@")
        self.dock = find(task.fields["plan"], "D")

    @tool
    def move(self, way: Literal["up", "down", "left", "right"]) -> str:
        """Drive one cell; one time in five the robot slips and goes a cell further."""
        for _ in range(2 if self.state.rng.random() < 0.2 else 1):
            row, column = (a + b for a, b in zip(self.place, STEPS[way], strict=True))
            if not (0 <= row < SIZE and 0 <= column < SIZE) or self.plan[row][column] == "#":
                return f"bump; at {self.place[0]},{self.place[1]}"
            self.place = (row, column)
            if self.place == self.dock:
                return "docked"
        return f"at {self.place[0]},{self.place[1]}"

    @property
    def is_done(self) -> bool:
        return self.place == self.dock

    def final_state(self):
        return {"place": list(self.place)}


def reward(trajectory: Trajectory) -> float:
    """1 for the dock, and a little less for every bump."""
    if tuple(trajectory.final_state["place"]) != find(trajectory.task.fields["plan"], "D"):
        return 0.0
    bumps = sum(str(t["result"]).startswith("bump") for t in trajectory.transitions)
    return max(0.5, 1.0 - 0.05 * bumps)


def scorer(trajectory: Trajectory) -> float:
    return float(any(t["result"] == "docked" for t in trajectory.transitions))


def plans(start: int, num: int) -> list[Task]:
    import random

    tasks: list[Task] = []
    seed = start
    while len(tasks) < num:
        seed += 1
        rng = random.Random(seed)
        grid = ["@", "D", *("#" * 6), *("." * (SIZE * SIZE - 8))]
        rng.shuffle(grid)
        plan = "\n".join("".join(grid[row * SIZE : row * SIZE + SIZE]) for row in range(SIZE))
        if reachable(plan):
            text = f"Drive the robot @ to the dock D; # is a wall. Rows count from the top, columns from the left, both from 0.\n{plan}"
            tasks.append(
                Task(
                    id=f"floor-{seed}", seed=seed, messages=({"role": "user", "content": text},), fields={"plan": plan}
                )
            )
    return tasks


def train_tasks() -> list[Task]:
    return plans(0, 48)


def validation_tasks() -> list[Task]:
    return plans(10_000, 12)


def held_out_tasks() -> list[Task]:
    return plans(20_000, 12)
