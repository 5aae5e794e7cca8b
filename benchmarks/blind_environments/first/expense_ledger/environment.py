"""An expense ledger: enter receipts so that the total is right."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

KINDS = ["taxi", "lunch", "hotel", "train", "paper", "stamps"]


class Ledger(Environment):
    def reset(self, task):
        self.total = task.fields["opening"]
        self.entries = []

    @tool
    def enter(self, kind: str, euros: float) -> str:
        """Enter a receipt.

        Args:
            kind: what it was for
            euros: the amount
        """
        self.entries.append(kind)
        self.total += euros
        return f"entered {kind} {euros:.2f}"

    @tool
    def show_total(self) -> str:
        """The total of the ledger in euros."""
        return f"{self.total:.2f}"

    def final_state(self):
        return {"entries": self.entries, "total": self.total}


def make_tasks(split, num):
    rng = random.Random(f"ledger {split}")
    tasks = []
    for index in range(num):
        opening = rng.randint(1000, 9000)
        receipts = [(kind, rng.randint(101, 9999)) for kind in rng.sample(KINDS, 4)]
        listed = ", ".join(f"{kind} {cents / 100:.2f}" for kind, cents in receipts)
        prompt = f"Enter these receipts, in this order: {listed} euros. Then say done."
        total = (opening + sum(cents for _, cents in receipts)) / 100
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={
                    "opening": opening / 100,
                    "state": {"entries": [kind for kind, _ in receipts], "total": total},
                },
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
