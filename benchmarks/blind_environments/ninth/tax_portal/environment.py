"""Tax portal: file the sales tax of a shop for a quarter."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

SHOPS = ["Baker Lane", "Two Wheels", "Green Thumb", "Night Owl", "Copper Pan", "Red Door", "Tall Tales", "Sole Mates"]
RATES = {"food": 10, "goods": 20, "books": 5}
"""Percent of tax for each kind of invoice."""
FIRST_NUMBER = {"train": 1000, "validation": 2000, "held_out": 3000}


class Portal(Environment):
    def reset(self, task: Task) -> None:
        self._invoices: dict[str, list[dict[str, str | int]]] = task.fields["invoices"]
        self._filed: dict[str, int] = {}

    @tool
    def list_invoices(self, shop: str) -> list[dict[str, str | int]]:
        """All invoices of a shop in the quarter: number, kind, net amount in euros, and status (sent or cancelled).

        Args:
            shop: name of the shop
        """
        return self._of(shop)

    @tool
    def tax_rates(self) -> dict[str, int]:
        """Tax on each kind of invoice, in percent of the net amount."""
        return RATES

    @tool
    def file_return(self, shop: str, tax: Annotated[int, Bounded(ge=0)]) -> str:
        """File the return of a shop. A return that does not agree with its invoices is refused, and can be filed again.

        Args:
            shop: name of the shop
            tax: tax of the quarter in euros
        """
        due = tax_due(self._of(shop))
        if tax != due:
            raise ToolFailure(f"refused: tax of {tax} EUR was declared, but the invoices of {shop} come to {due} EUR")
        self._filed[shop] = tax
        return f"the return of {shop} is filed"

    def _of(self, shop: str) -> list[dict[str, str | int]]:
        if shop not in self._invoices:
            raise ToolFailure(f"there is no shop {shop}")
        return self._invoices[shop]

    def final_state(self) -> dict[str, dict[str, int]]:
        return {"filed": self._filed}


def reward(trajectory: Trajectory) -> float:
    """1 when the return of the shop, and no other, is filed."""
    return float((trajectory.final_state or {}) == trajectory.task.fields["state"])


scorer = state_difference("state")


def tax_due(invoices: list[dict[str, str | int]]) -> int:
    """Tax in euros on the invoices that were not cancelled."""
    return sum(int(one["net"]) * RATES[str(one["kind"])] // 100 for one in invoices if one["status"] == "sent")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"portal {split} {number}")
    shops = rng.sample(SHOPS, 3)
    invoices = {
        shop: [
            {
                "number": f"R{key}",
                "kind": rng.choice(sorted(RATES)),
                "net": 20 * rng.randint(3, 60),
                "status": rng.choice(["sent", "sent", "cancelled"]),
            }
            for key in sorted(rng.sample(range(100, 1000), rng.randint(4, 8)))
        ]
        for shop in shops
    }
    shop = shops[0]
    invoices[shop][0]["status"] = "sent"
    text = (
        f"Case {FIRST_NUMBER[split] + number}: please work out the sales tax of {shop} for the quarter and file its return. "
        "Cancelled invoices do not count. Tell me when it is filed."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"invoices": invoices, "shop": shop, "state": {"filed": {shop: tax_due(invoices[shop])}}},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
