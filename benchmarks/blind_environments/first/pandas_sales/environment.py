"""A sales table in pandas: correct wrong amounts and report totals."""

import random
from functools import partial

import pandas as pd

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

_rng = random.Random(11)
REGIONS = ["north", "south", "east", "west"]
SALES = pd.DataFrame(
    {
        "order": range(1001, 1041),
        "region": [_rng.choice(REGIONS) for _ in range(40)],
        "amount": [_rng.randint(10, 500) for _ in range(40)],
    }
)
ORIGINAL = {int(row.order): (row.region, int(row.amount)) for row in SALES.itertuples()}


class SalesTable(Environment):
    def reset(self, task):
        self.table = SALES

    @tool
    def order(self, number: int) -> dict:
        """One order: region and amount."""
        rows = self.table[self.table["order"] == number]
        if rows.empty:
            return {"error": "no such order"}
        return {"region": str(rows["region"].iloc[0]), "amount": int(rows["amount"].iloc[0])}

    @tool
    def total(self, region: str) -> int:
        """Sum of the amounts of a region."""
        return int(self.table.loc[self.table["region"] == region, "amount"].sum())

    @tool
    def correct(self, number: int, amount: int) -> str:
        """Correct the amount of an order."""
        is_order = self.table["order"] == number
        if not is_order.any():
            return "no such order"
        self.table.loc[is_order, "amount"] = amount
        return "corrected"

    def final_state(self):
        return {region: self.total(region) for region in REGIONS}


def make_tasks(split, num):
    rng = random.Random(f"sales {split}")
    tasks = []
    for index in range(num):
        number, more = rng.choice(sorted(ORIGINAL)), rng.randint(5, 95)
        totals = {region: sum(amount for place, amount in ORIGINAL.values() if place == region) for region in REGIONS}
        totals[ORIGINAL[number][0]] += more
        prompt = f"The amount of order {number} is {more} too low. Correct it, then say done."
        tasks.append(
            Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields={"state": totals})
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
