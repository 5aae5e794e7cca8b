"""Electricity bills: consumption of a month from the meter."""

import random

from sparring.environments import Environment, tool
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

SYSTEM = """You answer customers of a power company.
`consumption(meter, month)` gives the kWh of a month of 2024 (1 is January, 12 is December).
`tariff(meter)` gives the price of a kWh in cents.
Answer with <final_output>{"kwh": 0, "cents": 0}</final_output>, where cents is kwh times the price."""

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


class Power(Environment):
    def reset(self, task):
        self.meters = task.fields["meters"]

    def _meter(self, meter):
        try:
            return self.meters[meter]
        except KeyError:
            raise ValueError(f"unknown meter {meter}") from None

    @tool
    def consumption(self, meter: str, month: int) -> int:
        """kWh that a meter counted in a month.

        Args:
            meter: number of the meter
            month: 1 (January) to 12 (December)
        """
        readings = self._meter(meter)["kwh"]
        if month < 1 or month > 12:
            raise ValueError("month must be 1 to 12")
        return readings[month]

    @tool
    def tariff(self, meter: str) -> int:
        """Price of a kWh in cents.

        Args:
            meter: number of the meter
        """
        return self._meter(meter)["price"]


reward = json_fields("final_output")
scorer = json_exact("final_output")


def bills(split, numbers, count):
    rng = random.Random(f"meter-{split}")
    tasks = []
    for index in range(count):
        meter, other = (f"M-{n}" for n in rng.sample(numbers, 2))
        meters = {
            m: {"kwh": [rng.randint(90, 420) for _ in MONTHS], "price": rng.randint(18, 41)} for m in (meter, other)
        }
        month = rng.randrange(11)
        kwh = meters[meter]["kwh"][month]
        question = f"Meter {meter}: what did I use in {MONTHS[month]}, and what does it cost?"
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": question}),
                fields={"meters": meters, "answer": {"kwh": kwh, "cents": kwh * meters[meter]["price"]}},
            )
        )
    return tasks


def train_tasks():
    return bills("train", range(1000, 3000), 64)


def validation_tasks():
    return bills("validation", range(3000, 3500), 16)


def held_out_tasks():
    return bills("held_out", range(4000, 4500), 16)
