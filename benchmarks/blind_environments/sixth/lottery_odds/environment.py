"""Odds: how likely is a draw from an urn? The tools count, the policy divides."""

from __future__ import annotations

import math
import random

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

COLOURS = ["red", "green", "blue", "white"]


class Urn(Environment):
    def reset(self, task: Task) -> None:
        self.balls = task.fields["balls"]

    @tool
    def count(self, colour: str) -> int:
        """How many balls of a colour are in the urn."""
        return self.balls.get(colour, 0)

    @tool
    def choose(self, n: int, k: int) -> int:
        """The number of ways to choose k of n things."""
        if not 0 <= k <= n <= 200:
            raise ValueError("give 0 <= k <= n <= 200")
        return math.comb(n, k)

    @tool
    def divide(self, a: int, b: int) -> float:
        """a / b, with four digits after the point."""
        if b == 0:
            raise ValueError("b must not be 0")
        return round(a / b, 4)


def _value(trajectory: Trajectory) -> float | None:
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return None
    try:
        value = float((last.get("content") or "").strip())
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def reward(trajectory: Trajectory) -> float:
    value = _value(trajectory)
    if value is None:
        return 0.0
    return float(math.isclose(value, trajectory.task.fields["probability"], rel_tol=1e-3, abs_tol=1))


def scorer(trajectory: Trajectory) -> float:
    value = _value(trajectory)
    return float(value is not None and round(value, 3) == round(trajectory.task.fields["probability"], 3))


def _tasks(split: str, num: int) -> list[Task]:
    rng = random.Random(f"urn {split}")
    made = []
    for n in range(num):
        balls = {colour: rng.randint(3, 9) for colour in COLOURS}
        colour, k = rng.choice(COLOURS), rng.choice([1, 2])
        probability = math.comb(balls[colour], k) / math.comb(sum(balls.values()), k)
        what = f"a {colour} ball" if k == 1 else f"two {colour} balls at once"
        text = f"An urn has red, green, blue and white balls. How likely is it to draw {what}? Answer with a number, four digits after the point."
        made.append(
            Task(
                id=f"urn-{split}-{n}",
                messages=({"role": "user", "content": text},),
                fields={"balls": balls, "probability": round(probability, 4)},
            )
        )
    return made


def train_tasks() -> list[Task]:
    return _tasks("train", 70)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", 30)
