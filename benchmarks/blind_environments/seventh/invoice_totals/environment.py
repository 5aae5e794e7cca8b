"""Invoices: the total of an invoice, from its lines and the discount of the customer."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import numeric_match
from sparring.types import Task, Trajectory

CUSTOMERS = [
    "Acorn",
    "Bolt",
    "Cobalt",
    "Delta",
    "Ember",
    "Fjord",
    "Granite",
    "Harbor",
    "Indigo",
    "Jade",
    "Kestrel",
    "Lumen",
]
GOODS = ["paper", "toner", "desks", "chairs", "lamps", "cables", "shelves", "screens"]
INSTRUCTIONS = (
    "You do accounts. `invoice` lists the lines of an invoice with number of pieces and price a piece, `discount` says what a customer "
    "is granted on the whole sum, in per cent. Answer with the total after the discount, with thousands separator, two decimals and "
    "currency, like this: <final_output>EUR 1,284.50</final_output>"
)


class Accounts(Environment):
    def reset(self, task: Task) -> None:
        self.number, self.lines = task.fields["number"], task.fields["lines"]
        self.customer, self.percent = task.fields["customer"], task.fields["discount"]

    @tool
    def invoice(self, number: int) -> list[dict[str, str | int]] | str:
        """The lines of an invoice; prices are in whole euros."""
        return self.lines if number == self.number else "no such invoice"

    @tool
    def discount(self, customer: str) -> int | str:
        """The discount of a customer, in per cent."""
        return self.percent if customer == self.customer else "no such customer"


def reward(trajectory: Trajectory) -> float:
    """1 for the right total, to the cent."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    text = last.get("content") or ""
    said = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if len(said) != 1 or text.count("<final_output>") != 1 or not re.fullmatch(r"(0|[1-9]\d*)(\.\d+)?", said[0]):
        return 0.0
    return float(abs(float(said[0]) - trajectory.task.fields["answer"]) < 0.004)


scorer = numeric_match("final_output", "answer", tolerance=0.004)


def train_tasks() -> list[Task]:
    return _tasks()[:40]


def held_out_tasks() -> list[Task]:
    return _tasks()[40:]


def _tasks() -> list[Task]:
    rng = random.Random("invoices")
    return [_task(number, rng) for number in rng.sample(range(1000, 9999), 55)]


def _task(number: int, rng: random.Random) -> Task:
    customer, discount = rng.choice(CUSTOMERS), rng.choice((2, 3, 5, 8, 10, 15))
    lines = [
        {"goods": goods, "pieces": rng.randint(2, 12), "price": rng.randint(8, 190)}
        for goods in rng.sample(GOODS, rng.randint(2, 4))
    ]
    cents = sum(line["pieces"] * line["price"] for line in lines) * (100 - discount)
    return Task(
        id=f"invoice-{number}",
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"What does {customer} have to pay for invoice {number}?"},
        ),
        fields={"number": number, "customer": customer, "lines": lines, "discount": discount, "answer": cents / 100},
    )
