from __future__ import annotations

import csv
import io
import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

CITIES = ("Oslo", "Porto", "Riga", "Sofia", "Turin", "Vilnius", "Zagreb", "Graz")
CARRIERS = ("AQ", "BX", "CV", "DK", "EN")
SHOWN = 3


class Flights(Environment):
    """The timetable of a task is CSV text, as the provider sends it."""

    def reset(self, task: Task) -> None:
        self.table = list(csv.DictReader(io.StringIO(task.fields["timetable"])))

    @tool
    def search(self, origin: str, destination: str) -> list[dict[str, str]]:
        """The three cheapest flights between two cities, cheapest first.

        Args:
            origin: city to leave from
            destination: city to fly to
        """
        rows = [row for row in self.table if row["from"] == origin and row["to"] == destination]
        rows.sort(key=lambda row: row["price"])
        return [{"flight": row["flight"], "price": row["price"]} for row in rows[:SHOWN]]

    @tool
    def departure(self, flight: str) -> str:
        """When a flight leaves.

        Args:
            flight: for example AQ123
        """
        for row in self.table:
            if row["flight"] == flight:
                return row["departs"]
        return "no such flight"


reward = json_fields()
scorer = json_exact()


def tasks(split: str, num: int) -> list[Task]:
    rng = random.Random(f"flights {split}")
    return [_task(f"{split}-{index}", rng) for index in range(num)]


train_tasks = partial(tasks, "train", 36)
held_out_tasks = partial(tasks, "held-out", 12)


def _task(name: str, rng: random.Random) -> Task:
    origin, destination, third = rng.sample(CITIES, 3)
    codes = rng.sample([f"{carrier}{number}" for carrier in CARRIERS for number in range(100, 1000)], 10)
    prices = rng.sample(range(35, 220), 10)
    lines = ["flight,from,to,departs,price"]
    wanted: list[tuple[int, str, str]] = []
    for index, (code, price) in enumerate(zip(codes, prices, strict=True)):
        departs = f"{rng.randint(5, 22):02}:{rng.randrange(0, 60, 5):02}"
        to = destination if index < 6 else third
        lines.append(f"{code},{origin},{to},{departs},{price}")
        if to == destination:
            wanted.append((price, code, departs))
    price, code, departs = min(wanted)
    text = (
        f"Traveller {rng.randint(10_000, 99_999)} asks: which flight from {origin} to {destination} is the cheapest, what does it cost and when does it leave? Answer like "
        '<final_output>{"flight": "XY100", "price": 99, "departs": "12:00"}</final_output>'
    )
    fields = {"timetable": "\n".join(lines), "route": [origin, destination]}
    fields["answer"] = {"flight": code, "price": price, "departs": departs}
    return Task(id=name, messages=({"role": "user", "content": text},), fields=fields)
