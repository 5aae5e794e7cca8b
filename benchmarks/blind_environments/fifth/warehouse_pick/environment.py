"""A warehouse: pick the items of an order from the bins where they lie."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

ITEMS = [
    "bolt",
    "chain",
    "drill",
    "fuse",
    "gasket",
    "hinge",
    "jack",
    "lamp",
    "mallet",
    "nozzle",
    "pulley",
    "rivet",
    "spring",
    "valve",
]


class Warehouse(Environment):
    def reset(self, task: Task) -> None:
        self.bins: dict[str, list[str]] = task.fields["bins"]
        self.cart: list[str] = []

    @tool
    def locate(self, item: str) -> str:
        """Bin in which an item lies.

        Args:
            item: in the singular
        """
        for name, items in self.bins.items():
            if item in items:
                return name
        return "not in stock"

    @tool
    def pick(self, item: str, bin: str) -> str:
        """Take an item out of a bin and put it on the cart.

        Args:
            item: in the singular
            bin: its number, such as B07
        """
        if item not in self.bins.get(bin, []):
            return f"error: no {item} in {bin}"
        self.bins[bin].remove(item)
        self.cart.append(item)
        return "picked"

    @tool
    def put_back(self, item: str, bin: str) -> str:
        """Put an item of the cart into a bin.

        Args:
            item: in the singular
            bin: its number, such as B07
        """
        if item not in self.cart or bin not in self.bins:
            return "error: no such item on the cart, or no such bin"
        self.cart.remove(item)
        self.bins[bin].append(item)
        return "put back"

    def final_state(self):
        return {"cart": sorted(self.cart), "bins": self.bins}


def reward(trajectory: Trajectory) -> float:
    """A fifth for finding things, the rest for the right cart."""
    order = trajectory.task.fields["order"]
    picked = [
        t
        for t in trajectory.transitions
        if t["tool"] == "pick" and t["arguments"]["item"] in order and t["result"] == "picked"
    ]
    progress = 0.2 * len(picked) / len(order)
    return progress + 0.8 * (trajectory.final_state["cart"] == sorted(order))


def scorer(trajectory: Trajectory) -> float:
    return 1.0 if sorted(trajectory.task.fields["order"]) == trajectory.final_state["cart"] else 0.0


def orders(split: str, items: list[str], num: int) -> list[Task]:
    rng = random.Random(f"warehouse-{split}")
    tasks = []
    for index in range(num):
        bins: dict[str, list[str]] = {f"B{number:02d}": [] for number in rng.sample(range(1, 60), 4)}
        for item in items:
            bins[rng.choice(sorted(bins))].append(item)
        order = rng.sample(items, 2)
        text = f"Order {index + 1}: one {order[0]} and one {order[1]}. Locate them, pick them, and say ready."
        fields = {"bins": bins, "order": order}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": text},), fields=fields))
    return tasks


def train_tasks() -> list[Task]:
    return orders("train", ITEMS[:7], 48)


def validation_tasks() -> list[Task]:
    return orders("validation", ITEMS[6:10], 12)


def held_out_tasks() -> list[Task]:
    return orders("held_out", ITEMS[9:], 12)
