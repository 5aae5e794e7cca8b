"""A freight desk: look up what an item weighs and book the transport of several pieces."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

NAMES = ["drill", "ladder", "bench", "pump", "heater", "saw", "cart", "lamp", "anvil", "hose"]


class Freight(Environment):
    def reset(self, task):
        self.items = {row["sku"]: row for row in task.fields["items"]}
        self.bookings = []

    @tool
    def catalogue(self) -> list:
        """All items: sku, name, and weight of one piece in kilograms."""
        return [{"sku": row["sku"], "name": row["name"], "weight": row["grams"] / 1000} for row in self.items.values()]

    @tool
    def item(self, sku: str) -> dict:
        """One item: name, and weight of one piece in kilograms.

        Args:
            sku: as in the catalogue
        """
        if sku not in self.items:
            return {"error": f"no item {sku}"}
        row = self.items[sku]
        return {"sku": sku, "name": row["name"], "weight": row["grams"]}

    @tool
    def book(self, sku: str, pieces: int, total_weight: float) -> str:
        """Book the transport of some pieces of an item.

        Args:
            sku: as in the catalogue
            pieces: how many
            total_weight: of all pieces together, in kilograms
        """
        if sku not in self.items:
            return f"no item {sku}"
        self.bookings.append({"sku": sku, "pieces": pieces, "kg": round(total_weight, 3)})
        return f"booked {pieces} x {sku}, {total_weight} kg"

    def final_state(self):
        return {"bookings": self.bookings}


def make_tasks(split, num):
    rng = random.Random(split)
    tasks = []
    for index in range(num):
        items = [
            {"sku": f"{name[:2].upper()}{rng.randint(100, 999)}", "name": name, "grams": rng.randint(5, 180) * 50}
            for name in rng.sample(NAMES, 5)
        ]
        wanted, pieces = rng.choice(items), rng.randint(2, 6)
        booking = {"sku": wanted["sku"], "pieces": pieces, "kg": round(wanted["grams"] * pieces / 1000, 3)}
        prompt = f"Book the transport of {pieces} pieces of item {wanted['sku']} with their weight. Then say done."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"items": items, "state": {"bookings": [booking]}},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
