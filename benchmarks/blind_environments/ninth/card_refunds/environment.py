"""Refund desk of a card processor with payments in several currencies."""

from __future__ import annotations

import random
from decimal import Decimal, InvalidOperation

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

DIGITS = {"EUR": 2, "USD": 2, "CHF": 2, "JPY": 0, "KRW": 0}
"""Decimal places of each currency. Amounts are stored in its smallest unit: cents, or whole yen and won."""
FIRST_NUMBER = {"train": 3000, "validation": 6000, "held_out": 9000}


class Processor(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.state.database.execute(
            "CREATE TABLE payments (id TEXT PRIMARY KEY, customer TEXT, currency TEXT, amount INTEGER, refunded INTEGER)"
        )
        for row in task.fields["payments"]:
            self.state.database.execute("INSERT INTO payments VALUES (?, ?, ?, ?, 0)", row)

    @tool
    def list_payments(self, customer: str) -> list[str]:
        """Numbers of all payments of a customer.

        Args:
            customer: number of the customer, such as C123
        """
        rows = self.state.database.execute("SELECT id FROM payments WHERE customer = ? ORDER BY id", (customer,))
        return [row[0] for row in rows]

    @tool
    def get_payment(self, payment: str) -> dict[str, str]:
        """Currency of a payment, its amount and what is refunded so far, both in that currency.

        Args:
            payment: number of the payment
        """
        currency, amount, refunded = self._payment(payment)
        return {"currency": currency, "amount": f"{amount / 100:.2f}", "refunded": f"{refunded / 100:.2f}"}

    @tool
    def refund(self, payment: str, amount: str) -> str:
        """Refund a payment, in whole or in part.

        Args:
            payment: number of the payment
            amount: amount in the currency of the payment, such as 12.50 for twelve euros and fifty cents
        """
        currency, paid, refunded = self._payment(payment)
        try:
            smallest = Decimal(amount).scaleb(DIGITS[currency])
        except InvalidOperation:
            raise ToolFailure(f"{amount} is not an amount") from None
        if smallest <= 0 or smallest != smallest.to_integral_value():
            raise ToolFailure(f"{amount} {currency} is not an amount that can be paid out")
        if refunded + smallest > paid:
            raise ToolFailure("that is more than was paid")
        self.state.database.execute(
            "UPDATE payments SET refunded = refunded + ? WHERE id = ?", (int(smallest), payment)
        )
        return f"refunded {amount} {currency}"

    def _payment(self, payment: str) -> tuple[str, int, int]:
        row = self.state.database.execute(
            "SELECT currency, amount, refunded FROM payments WHERE id = ?", (payment,)
        ).fetchone()
        if row is None:
            raise ToolFailure(f"there is no payment {payment}")
        return row

    def final_state(self) -> dict[str, int]:
        return dict(self.state.database.execute("SELECT id, refunded FROM payments ORDER BY id"))


def reward(trajectory: Trajectory) -> float:
    """1 when exactly the right refunds were made."""
    return 1.0 if dict(trajectory.final_state or {}) == trajectory.task.fields["state"] else 0.0


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"refunds {split} {number}")
    currency = rng.choice(["JPY", "KRW"]) if number % 4 == 3 else rng.choice(["EUR", "USD", "CHF"])
    customer, other = (f"C{one}" for one in rng.sample(range(100, 999), 2))
    ids = [f"pay_{one}" for one in rng.sample(range(10**5, 10**6), 4)]
    amounts = [2 * rng.randint(600, 9000) for _ in ids]
    currencies = [currency, currency, *rng.choices(["EUR", "USD", "CHF"], k=2)]
    owners = [customer, customer, other, other]
    payments = [list(row) for row in zip(ids, owners, currencies, amounts, strict=True)]
    wanted = dict.fromkeys(sorted(ids), 0)
    if number % 2:
        wish = f"refund both payments of customer {customer} in full"
        wanted[ids[0]], wanted[ids[1]] = amounts[:2]
    else:
        wish = f"refund half of payment {ids[0]} of customer {customer}; the parcel came late"
        wanted[ids[0]] = amounts[0] // 2
    text = f"Ticket {FIRST_NUMBER[split] + number}: please {wish}."
    system = "You work at the refund desk of a card processor. Do what the ticket asks with the tools, then confirm it."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "system", "content": system}, {"role": "user", "content": text}),
        fields={"payments": payments, "customer": customer, "first": ids[0], "state": wanted},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
