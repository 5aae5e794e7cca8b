"""Electricity bills from meter readings."""

import random
import re
from decimal import Decimal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import numeric_match
from sparring.types import Task


class Meters(Environment):
    def reset(self, task):
        self.readings, self.tariffs = task.fields["readings"], task.fields["tariffs"]

    @tool
    def reading(self, meter: str, month: int) -> int:
        """Reading of a meter at the end of a month, in kWh.

        Args:
            meter: its number
            month: 1 to 6
        """
        known = self.readings.get(meter, [])
        if not 1 <= month <= len(known):
            raise ToolFailure(f"there is no reading of {meter} for month {month}")
        return known[month - 1]

    @tool
    def tariff(self, meter: str) -> str:
        """Price of a kWh at a meter, in euros.

        Args:
            meter: its number
        """
        return self.tariffs.get(meter, "no such meter")

    @tool
    def multiply(self, number: float, price: float) -> float:
        """A product, to cents.

        Args:
            number: of kWh
            price: of one
        """
        return round(number * price + 1e-9, 2)


def reward(trajectory):
    """1 for the right amount."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    found = re.search(r"<final_output>\s*(\d+)", last.get("content") or "")
    if found is None:
        return 0.0
    return 1.0 if Decimal(found[1]) == Decimal(trajectory.task.fields["answer"]) else 0.0


scorer = numeric_match(tolerance=0)


def _task(name, rng):
    meters = [f"M{number}" for number in rng.sample(range(100, 1000), 3)]
    readings, tariffs = {}, {}
    for meter in meters:
        level = rng.randint(1000, 9000)
        readings[meter] = [level := level + rng.randint(8, 30) * 10 for _ in range(6)]
        tariffs[meter] = str(Decimal(rng.choice([20, 25, 28, 30, 31, 40])) / 100)
    meter, month = meters[0], rng.randint(2, 6)
    used = readings[meter][month - 1] - readings[meter][month - 2]
    amount = used * Decimal(tariffs[meter])
    text = (
        f"Customer {rng.randint(10_000, 99_999)} asks: what does the electricity of month {month} at meter {meter} cost in euros? The number alone, with the cents where there are "
        "any: <final_output>3.2</final_output>"
    )
    return Task(
        id=name,
        messages=({"role": "user", "content": text},),
        fields={
            "readings": readings,
            "tariffs": tariffs,
            "meter": meter,
            "month": month,
            "answer": f"{amount.normalize():f}",
        },
    )


def train_tasks():
    rng = random.Random(81)
    return [_task(f"bill-{n}", rng) for n in range(38)]


def held_out_tasks():
    rng = random.Random(82)
    return [_task(f"bill-held-{n}", rng) for n in range(14)]
