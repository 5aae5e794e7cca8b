"""A game of pushing one's luck: roll and collect, stop in time. A one loses everything, and the game ends by itself."""

from __future__ import annotations

import itertools
import json
import random

from sparring.environments import Environment, tool
from sparring.types import Reward, Score, Task, Trajectory

OPENING = """You play with a die. Each roll adds its pips to the pot, but a one empties the pot and you lose. Bank when the pot has reached the
target: then you win. Banking less than the target loses as well. The rolls of a game are drawn beforehand, so that it can be won."""


def rolls(seed: int):
    """The die of a game, without end: the same for everybody who plays it."""
    rng = random.Random(f"die {seed}")
    while True:
        yield rng.randint(1, 6)


class PushYourLuck(Environment):
    def reset(self, task: Task) -> None:
        self._rolls = rolls(task.seed)
        self.target: int = task.fields["target"]
        self.pot = 0
        self.result: str | None = None

    @tool
    def roll(self) -> dict[str, int]:
        """Roll the die once: pips and pot. A one ends the game."""
        pips = next(self._rolls)
        self.pot = 0 if pips == 1 else self.pot + pips
        if pips == 1:
            self.result = "lost"
        return {"pips": pips, "pot": self.pot}

    @tool
    def bank(self) -> str:
        """Stop and bank the pot, which ends the game."""
        self.result = "won" if self.pot >= self.target else "too little"
        return f"{self.pot} banked, the target was {self.target}"

    @property
    def is_done(self) -> bool:
        return self.result is not None

    def final_state(self) -> dict[str, str | int | None]:
        return {"result": self.result, "pot": self.pot}


OUTCOMES = {"won": 1.0, "too little": -0.5, "lost": -1.0, None: -1.0}


def reward(trajectory: Trajectory) -> Reward:
    """1 for a win, -0.5 for too little, -1 for a one and for a game that was left."""
    result = (trajectory.final_state or {}).get("result")
    return Reward(total=OUTCOMES[result], components={"game": OUTCOMES[result]})


def scorer(trajectory: Trajectory) -> Score:
    """By what the tools answered: the last pot before a bank against the target."""
    pot = 0
    for step in trajectory.transitions:
        if step["error"] is None and step["tool"] == "bank":
            return Score(float(pot >= trajectory.task.fields["target"]))
        if step["error"] is None:
            pot = json.loads(step["result"])["pot"]
    return Score(0.0)


def train_tasks(num: int = 40) -> list[Task]:
    return _tasks("game", num, first_seed=0)


def held_out_tasks(num: int = 20) -> list[Task]:
    return _tasks("match", num, first_seed=100_000)


def _tasks(name: str, num: int, first_seed: int) -> list[Task]:
    """Games in which three rolls or more come before the first one; the target is the pot after two of them or more."""
    tasks: list[Task] = []
    for seed in itertools.count(first_seed):
        if len(tasks) == num:
            break
        safe = list(itertools.takewhile(lambda pips: pips != 1, itertools.islice(rolls(seed), 8)))
        if len(safe) < 3:
            continue
        target = sum(safe[: random.Random(f"target {seed}").randint(2, len(safe) - 1)])
        number = len(tasks)
        tasks.append(
            Task(
                id=f"{name}-{number}",
                messages=(
                    {"role": "system", "content": OPENING},
                    {"role": "user", "content": f"{name.capitalize()} {number}: the target is {target}."},
                ),
                fields={"target": target},
                seed=seed,
            )
        )
    return tasks
