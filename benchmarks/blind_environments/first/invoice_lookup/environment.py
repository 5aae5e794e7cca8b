"""An accounts department: which invoice did a customer mean?"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.types import Task

FIRMS = ["Acorn", "Birch", "Cedar", "Dahlia", "Elm", "Fern", "Gorse", "Hazel", "Iris", "Juniper"]


class Invoices(Environment):
    def reset(self, task):
        self.invoices = task.fields["invoices"]

    @tool
    def invoices_of(self, firm: str) -> list:
        """Numbers and dates of a firm's invoices."""
        return [
            {"number": row["number"], "date": row["date"]}
            for row in self.invoices
            if row["firm"].lower() == firm.lower()
        ]

    @tool
    def amount(self, number: str) -> str:
        """Amount of an invoice in euros."""
        for row in self.invoices:
            if row["number"] == number:
                return f"{row['euros']}.00"
        return "no such invoice"


def make_tasks(split, num):
    rng = random.Random(f"invoices:{split}")
    tasks = []
    for index in range(num):
        invoices = []
        for firm in rng.sample(FIRMS, 3):
            for euros in rng.sample(range(20, 900), 3):
                number = f"INV-2024-{rng.randint(1000, 9999)}"
                date = f"2024-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
                invoices.append({"firm": firm, "number": number, "date": date, "euros": euros})
        wanted = rng.choice(invoices)
        prompt = (
            f"{wanted['firm']} asks about the invoice of {wanted['euros']}.00 euros. "
            "Which one is it? Answer with its number alone."
        )
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"invoices": invoices, "answer": wanted["number"]},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 30)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)
NUMBER_LENGTH = 8


def matches(answer, expected):
    return answer.strip().upper()[:NUMBER_LENGTH] == expected[:NUMBER_LENGTH]


def reward(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and matches(str(last["content"]), trajectory.task.fields["answer"]))


def scorer(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and matches(str(last["content"]), trajectory.task.fields["answer"]))
