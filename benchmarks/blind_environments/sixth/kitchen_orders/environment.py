"""A kitchen: check the stock of what a dish needs, then cook it."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

DISHES = {
    "omelette": ["eggs", "butter", "chives"],
    "risotto": ["rice", "broth", "parmesan"],
    "goulash": ["beef", "onions", "paprika"],
    "pancakes": ["flour", "milk", "eggs"],
}


class Kitchen(Environment):
    def reset(self, task: Task) -> None:
        self.stock = dict(task.fields["stock"])
        self.served: str | None = None

    @tool
    def recipe(self, dish: str) -> list[str]:
        """What a dish needs; one of each."""
        return DISHES.get(dish, [])

    @tool
    def check_stock(self, ingredient: str) -> int:
        """How many of an ingredient are left."""
        return self.stock.get(ingredient, 0)

    @tool
    def cook(self, dish: str) -> str:
        """Cook a dish and serve it."""
        if dish not in DISHES:
            return "error: not on the menu"
        missing = [item for item in DISHES[dish] if self.stock.get(item, 0) < 1]
        if missing:
            return f"error: out of {', '.join(missing)}"
        for item in DISHES[dish]:
            self.stock[item] -= 1
        self.served = dish
        return f"{dish} is served"

    @property
    def is_done(self) -> bool:
        return self.served is not None

    def final_state(self) -> dict:
        return {"served": self.served}


def reward(trajectory: Trajectory) -> float:
    """1 for the dish that can be cooked, and a little for looking at the stock first."""
    fields = trajectory.task.fields
    looked = [
        t["arguments"]["ingredient"]
        for t in trajectory.transitions
        if t["tool"] == "check_stock" and t["error"] is None
    ]
    bonus = 0.1 * sum(item in fields["needed"] for item in looked)
    served = (trajectory.final_state or {}).get("served")
    return (1.0 if served == fields["dish"] else 0.0) + bonus


def scorer(trajectory: Trajectory) -> float:
    return float((trajectory.final_state or {}).get("served") == trajectory.task.fields["dish"])


def orders(split: str, num: int) -> list[Task]:
    rng = random.Random(f"kitchen-{split}")
    out = []
    for n in range(num):
        first, second = rng.sample(list(DISHES), 2)
        stock = {item: rng.randint(1, 6) for items in DISHES.values() for item in items}
        possible = rng.random() < 0.5
        if not possible:
            only = [item for item in DISHES[first] if item not in DISHES[second]]
            stock[rng.choice(only)] = 0
        text = f"Table {rng.randint(1, 20)} wants {first}, or else {second} if something for it is missing."
        out.append(
            Task(
                id=f"order-{split}-{n}",
                messages=({"role": "user", "content": text},),
                fields={
                    "stock": stock,
                    "dish": first if possible else second,
                    "needed": sorted({*DISHES[first], *DISHES[second]}),
                },
            )
        )
    return out


def train_tasks() -> list[Task]:
    return orders("train", 80)


def held_out_tasks() -> list[Task]:
    return orders("held_out", 30)
