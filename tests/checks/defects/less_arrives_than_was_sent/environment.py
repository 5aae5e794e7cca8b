"""A bonus club moves points between cards.

What arrives is rounded down to tens.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Bonus(Environment):
    def reset(self, task):
        self.points = dict(task.fields["points"])

    @tool
    def points_on(self, card: str) -> int:
        """Points on a card."""
        return self.points[card]

    @tool
    def cards(self) -> list:
        """All cards."""
        return sorted(self.points)

    @tool
    def move_points(self, giver: str, taker: str, points: int) -> str:
        """Move points from one card to another."""
        if giver not in self.points or taker not in self.points or not 0 < points <= self.points[giver]:
            return "not possible"
        self.points[giver] -= points
        self.points[taker] += points // 10 * 10
        return "moved"

    def final_state(self):
        return self.points


def make_tasks(split, num):
    rng = random.Random(f"{split} less arrives than was sent")
    tasks = []
    for index in range(num):
        fields = {"points": {f"K{number}": rng.randint(100, 400) for number in rng.sample(range(10, 99), 4)}}
        (giver, taker), points = rng.sample(sorted(fields["points"]), 2), rng.randint(1, 9) * 10
        prompt = f"Move {points} points from {giver} to {taker}, then say done."
        state = {card: old + points * ((card == taker) - (card == giver)) for card, old in fields["points"].items()}
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={**fields, "state": state},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 20)
validation_tasks = partial(make_tasks, "validation", 6)
held_out_tasks = partial(make_tasks, "held_out", 6)
scorer = state_difference("state")


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])
