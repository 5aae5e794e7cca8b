"""Payroll office. Monthly pay = hours x rate, less 11 % pension; rounding: half a cent goes up."""

from __future__ import annotations

import random
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

CENT = Decimal("0.01")
PENSION = Decimal("0.11")


@dataclass
class Worker:
    number: str
    name: str
    rate: Decimal
    hours: Decimal

    def gross(self) -> Decimal:
        return self.rate * self.hours

    def net(self) -> Decimal:
        net = self.gross() * (1 - PENSION)
        return Decimal(int(net * 100)) / 100


class PayrollOffice(Environment):
    def reset(self, task: Task) -> None:
        self.staff = {
            n: Worker(n, name, Decimal(rate), Decimal(hours)) for n, name, rate, hours in task.fields["staff"]
        }

    def _worker(self, number: str) -> Worker:
        if number not in self.staff:
            raise ToolFailure(f"nobody has the number {number}")
        return self.staff[number]

    @tool
    def find(self, name: str) -> str:
        """Staff number of a person.

        Args:
            name: first name
        """
        return next((one.number for one in self.staff.values() if one.name == name), "unknown")

    @tool
    def hours(self, number: str) -> str:
        """Hours that somebody worked this month.

        Args:
            number: staff number
        """
        return str(self._worker(number).hours)

    @tool
    def net_pay(self, number: str) -> str:
        """Net pay of the month: hours times rate less 11 % pension, rounded to whole cents, half a cent up.

        Args:
            number: staff number
        """
        return f"{self._worker(number).net():.2f}"


reward = json_fields()
scorer = json_exact()

PROMPT = """Enquiry {enquiry}. Report the hours and the net pay of {name}, as the pay slip shows them.
Answer: <final_output>{{"number": "S10", "hours": "12", "net": "123.45"}}</final_output>"""


def _task(label: str, index: int) -> Task:
    rng = random.Random(f"{label}/{index}")
    names = rng.sample(
        ["Aino", "Bela", "Carla", "Dev", "Elif", "Femi", "Goran", "Hana", "Ines", "Jonas", "Kira", "Luca"], 4
    )
    numbers = rng.sample(range(10, 99), 4)
    staff = []
    for name, number in zip(names, numbers, strict=True):
        rate = Decimal(rng.randrange(1500, 4500, 5)) / 100
        staff.append((f"S{number}", name, str(rate), str(Decimal(rng.randrange(40, 330)) / 2)))
    number, name, rate, hours = rng.choice(staff)
    gross = Decimal(rate) * Decimal(hours)
    net = (gross - gross * PENSION).quantize(CENT, rounding=ROUND_HALF_UP)
    return Task(
        id=f"{label}-{index}",
        messages=({"role": "user", "content": PROMPT.format(enquiry=rng.randint(10_000, 99_999), name=name)},),
        fields={
            "staff": [list(row) for row in staff],
            "name": name,
            "answer": {"number": number, "hours": hours, "net": str(net)},
        },
    )


def train_tasks() -> list[Task]:
    return [_task("slip", index) for index in range(40)]


def held_out_tasks() -> list[Task]:
    return [_task("audit", index) for index in range(12)]
