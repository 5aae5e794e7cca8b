"""A garage's stock of parts: search, read the price, quote a sum."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

MAKES = ["Fiat", "Opel", "Saab", "Volvo"]
PARTS = ["Brake Pad", "Oil Filter", "Spark Plug", "Fan Belt", "Wiper Blade", "Air Filter"]


class Garage(Environment):
    def reset(self, task: Task) -> None:
        self.stock: list[dict] = list(task.fields["stock"])

    @tool
    def search(self, query: str) -> list[dict]:
        """Parts whose name has the words of the query, whatever their case; at most 10.

        Args:
            query: words of the name, such as volvo oil filter
        """
        words = query.lower().split()
        return [part for part in self.stock if words and all(word in part["name"] for word in words)][:10]

    @tool
    def part(self, number: str) -> dict:
        """Name and price in euros of a part by its number.

        Args:
            number: such as P-1007
        """
        return next((p for p in self.stock if p["number"] == number), {"error": "unknown number"})


def reward(trajectory: Trajectory) -> float:
    last = trajectory.messages[-1]
    text = (last.get("content") or "") if last["role"] == "assistant" else ""
    return 1.0 if text.strip().removesuffix(" euros") == str(trajectory.task.fields["total"]) else 0.0


def scorer(trajectory: Trajectory) -> float:
    last = trajectory.messages[-1]
    text = str(last.get("content") or "") if last["role"] == "assistant" else ""
    try:
        return float(int(text.strip().removesuffix(" euros")) == trajectory.task.fields["total"])
    except ValueError:
        return 0.0


def generate(split: str, num: int) -> list[Task]:
    rng = random.Random(f"{split} garage")
    tasks: list[Task] = []
    for index in range(num):
        names = [f"{make} {part}" for make in MAKES for part in PARTS]
        numbers = rng.sample(range(1000, 9999), len(names))
        stock = [{"number": f"P-{n}", "name": name, "price": rng.randint(5, 90)} for name, n in zip(names, numbers)]
        rng.shuffle(stock)
        part, num_wanted = rng.choice(stock), rng.randint(2, 6)
        question = f"What do {num_wanted} pieces of the part '{part['name'].lower()}' cost together? Answer with the number of euros only."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": question},),
                fields={"stock": stock, "total": num_wanted * part["price"]},
            )
        )
    return tasks


def train_tasks() -> list[Task]:
    return generate("train", 64)


def held_out_tasks() -> list[Task]:
    return generate("held_out", 24)
