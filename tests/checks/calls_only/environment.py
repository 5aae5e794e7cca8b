"""A desk for refunds that reports no state: it is graded by the calls that were made."""

import random

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Task


class Refunds(Environment):
    def reset(self, task):
        self.orders = task.fields["orders"]
        self.refunded = []

    @tool
    def orders_of(self, name: str) -> list[str]:
        """The orders of a customer."""
        return [order for order, owner in self.orders.items() if owner == name]

    @tool
    def refund(self, order: str) -> str:
        """Refund an order."""
        if order not in self.orders:
            raise ValueError("there is no such order")
        self.refunded = sorted({*self.refunded, order})
        return "refunded"

    def demonstrate(self, task):
        name, order = task.fields["name"], task.fields["order"]
        return [tool_call("orders_of", name=name), tool_call("refund", order=order), answer(f"{name} has it back.")]


def tasks(split, num):
    rng, found = random.Random(split), []
    for index in range(num):
        names = rng.sample(("Abe", "Bea", "Cleo", "Dora", "Egon", "Fay"), 4)
        orders = {f"R{rng.randint(1000, 9999)}": name for name in names}
        order, name = next(iter(orders.items()))
        prompt = f"Case {split}-{index}: refund the order of {name}."
        fields = {"orders": orders, "order": order, "name": name}
        found.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return found


def train_tasks():
    return tasks("train", 40)


def held_out_tasks():
    return tasks("held_out", 10)


def reward(trajectory):
    made = [one["arguments"].get("order") for one in trajectory.transitions if one["tool"] == "refund"]
    return float(made == [trajectory.task.fields["order"]])


def scorer(trajectory):
    calls = [one for one in trajectory.transitions if one["tool"] == "refund" and one["error"] is None]
    return float([one["arguments"]["order"] for one in calls] == [trajectory.task.fields["order"]])
