"""Orders of a web shop, asked about by period."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

SYSTEM = """You report sales. A period goes from its first day to its last, both included. Cancelled orders do not count. Dates are
written as 2025-03-31. Answer with the number of orders and their sum in cents:
<final_output>{"orders":0,"cents":0}</final_output>"""


@dataclass(frozen=True, slots=True)
class Order:
    number: str
    placed: str
    """Local time, as 2025-03-31T18:05."""
    cents: int
    cancelled: bool


class OrderTotals(Environment):
    def reset(self, task: Task) -> None:
        self._orders = [Order(*row) for row in task.fields["orders"]]

    @tool
    def orders(self, first_day: str, last_day: str) -> list[dict]:
        """Orders placed from one day to another, both included, cancelled ones among them.

        Args:
            first_day: as 2025-03-01
            last_day: as 2025-03-31
        """
        first, last = _day(first_day), _day(last_day)
        return [
            {"number": order.number, "placed": order.placed, "cents": order.cents, "cancelled": order.cancelled}
            for order in self._orders
            if first <= datetime.fromisoformat(order.placed).date() <= last
        ]

    @tool
    def add(self, cents: list[int]) -> int:
        """The sum of amounts in cents."""
        return sum(cents)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ToolFailure(f"{text!r} is no date; write it as 2025-03-31") from None


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index, year=2024) for index in range(num)]


def held_out_tasks(num: int = 16) -> list[Task]:
    return [_task("held_out", index, year=2025) for index in range(num)]


def _task(split: str, index: int, year: int) -> Task:
    rng = random.Random(f"orders {split} {index}")
    begin = date(year, rng.randint(1, 12), rng.randint(1, 28))
    orders = []
    for number in rng.sample(range(10_000, 99_999), 14):
        placed = datetime(begin.year, begin.month, begin.day) + timedelta(minutes=rng.randrange(8 * 24 * 60))
        orders.append(
            Order(f"W{number}", placed.isoformat(timespec="minutes"), rng.randint(500, 20_000), rng.random() < 0.2)
        )
    orders.sort(key=lambda order: order.placed)
    first = begin + timedelta(days=rng.randint(0, 3))
    last = first + timedelta(days=rng.randint(1, 3))
    asked = [order for order in orders if str(first) <= order.placed <= str(last) and not order.cancelled]
    return Task(
        id=f"orders-{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Report {year}/{index + 1}: what was ordered from {first} to {last}?"},
        ),
        fields={
            "orders": [[order.number, order.placed, order.cents, order.cancelled] for order in orders],
            "first": str(first),
            "last": str(last),
            "answer": {"orders": len(asked), "cents": sum(order.cents for order in asked)},
        },
        seed=index,
    )
