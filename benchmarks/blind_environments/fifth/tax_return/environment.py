"""A tax adviser: look up an income, work through the brackets, name the tax."""

import random
import re

from sparring.environments import Environment, tool
from sparring.types import Task

PROMPT = """You are a tax adviser. Tax of the year is due in brackets:
  0 % on the first 10,000
  20 % on what lies between 10,000 and 40,000
  35 % on what lies above 40,000
Deductions come off the income first.
Look up the client, then write the amount due in each bracket, one a line, and on the last line the total, for example:
  20 %: 2400
  35 %: 0
  total: 2400"""


def tax_of(income, deductions):
    taxable = max(0, income - deductions)
    middle = max(0, min(taxable, 40_000) - 10_000) * 20 // 100
    top = max(0, taxable - 40_000) * 35 // 100
    return middle + top


class Office(Environment):
    def reset(self, task):
        self._clients = task.fields["clients"]

    @tool
    def client(self, name: str) -> dict[str, int]:
        """Income and deductions of a client, in whole euros.

        Args:
            name: surname of the client
        """
        if name not in self._clients:
            raise KeyError(f"no client named {name}; known are {', '.join(sorted(self._clients))}")
        return dict(self._clients[name])

    @tool
    def multiply(self, amount: int, percent: int) -> int:
        """Percent of an amount, rounded down.

        Args:
            amount: whole euros
            percent: 0 to 100
        """
        return amount * percent // 100


def total_named(text):
    numbers = re.findall(r"\d[\d,]*", text.replace("%", ""))
    return int(numbers[0].replace(",", "")) if numbers else None


def _last(trajectory):
    message = trajectory.messages[-1]
    return message.get("content") or "" if message["role"] == "assistant" else ""


def reward(trajectory):
    return 1.0 if total_named(_last(trajectory)) == trajectory.task.fields["tax"] else 0.0


def scorer(trajectory):
    lines = [line for line in _last(trajectory).splitlines() if line.strip()]
    found = re.fullmatch(r"\s*total:\s*([\d,]+)\s*", lines[-1]) if lines else None
    if found is None:
        return 0.0
    client = trajectory.task.fields["clients"][trajectory.task.fields["name"]]
    return float(int(found[1].replace(",", "")) == tax_of(client["income"], client["deductions"]))


NAMES = [
    "Abel",
    "Bauer",
    "Celik",
    "Duarte",
    "Evans",
    "Fodor",
    "Garcia",
    "Hoang",
    "Ito",
    "Jensen",
    "Kaya",
    "Lund",
    "Moreau",
    "Novak",
]


def _make(split, names, num):
    rng = random.Random(f"tax:{split}")
    for index in range(num):
        clients = {
            name: {"income": rng.randrange(12_000, 90_000, 100), "deductions": rng.randrange(0, 9_000, 100)}
            for name in rng.sample(names, 3)
        }
        name = rng.choice(sorted(clients))
        yield Task(
            id=f"tax-{split}-{index}",
            messages=(
                {"role": "system", "content": PROMPT},
                {"role": "user", "content": f"How much tax does {name} owe?"},
            ),
            fields={"clients": clients, "name": name, "tax": tax_of(**clients[name])},
        )


def train_tasks():
    return list(_make("train", NAMES[:8], 70))


def validation_tasks():
    return list(_make("validation", NAMES[8:11], 20))


def held_out_tasks():
    return list(_make("held_out", NAMES[11:], 20))
