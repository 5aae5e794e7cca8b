"""The tax of an invoice, line by line."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You check invoices. The tax of a line is its net amount times the rate of its goods. Round the tax of every line to whole cents, half a
cent upwards, and add the lines up. Answer with the tax of the whole invoice in euros alone, with two decimals, for example: 3.40"""

RATES = {"books": 7, "paper": 19, "coffee": 5, "lamps": 21, "plants": 9}


def line_tax(cents, rate):
    """Tax of a line in cents."""
    return round(cents * rate / 100)


def _euros(cents):
    return f"{cents // 100}.{cents % 100:02d}"


class Invoices(Environment):
    def reset(self, task):
        self.invoices = task.fields["invoices"]

    @tool
    def invoice(self, number: str) -> list[dict[str, str]] | str:
        """Lines of an invoice: goods and net amount in euros.

        Args:
            number: for example R204
        """
        if number not in self.invoices:
            return "no such invoice"
        return [{"goods": goods, "net": _euros(cents)} for goods, cents in self.invoices[number]]

    @tool
    def rate(self, goods: str) -> str:
        """Rate of the tax on goods, in per cent."""
        return str(RATES.get(goods, "no such goods"))


def _task(split, index, rng):
    numbers = [f"R{number}" for number in rng.sample(range(100, 1000), 3)]
    invoices = {
        number: [[goods, 50 * rng.randint(3, 90)] for goods in rng.sample(sorted(RATES), rng.randint(2, 3))]
        for number in numbers
    }
    total = sum(line_tax(cents, RATES[goods]) for goods, cents in invoices[numbers[0]])
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"How much tax is on invoice {numbers[0]}?"},
        ),
        fields={"invoices": invoices, "answer": _euros(total)},
    )


def train_tasks():
    rng = random.Random(2024)
    return [_task("train", index, rng) for index in range(48)]


def held_out_tasks():
    rng = random.Random(2025)
    return [_task("held-out", index, rng) for index in range(24)]


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] == "assistant" and not last.get("tool_calls"):
        return 1.0 if (last.get("content") or "").strip() == trajectory.task.fields["answer"] else 0.0
    return 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    if last.get("tool_calls") or last["role"] != "assistant":
        return 0.0
    return float((last.get("content") or "").split() == trajectory.task.fields["answer"].split())
