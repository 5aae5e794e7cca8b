"""Banking: give back the cash machine fees that a customer should not have paid."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

FEE = 3
POLICY = {
    "Light Blue": "Light Blue accounts: two cash withdrawals a month at machines of other banks are free. Each further one costs 3 EUR.",
    "Evergreen": "Evergreen accounts: three cash withdrawals a month at machines of other banks are free. Each further one costs 3 EUR.",
    "Basic": "Basic accounts: one cash withdrawal a month at machines of other banks is free. Each further one costs 3 EUR.",
}
FREE = {"Light Blue": 1, "Evergreen": 3, "Basic": 1}
"""Withdrawals a month at machines of other banks that cost nothing."""
PROMPT = (
    "I bank with you, my account is {account}. I think that I was charged too much for withdrawals in {month}. Please check it "
    "against your price list, give back what was charged wrongly in one booking (nothing if all is right), and tell me the amount."
)
MONTHS = ["January", "February", "March", "April", "May", "June"]


class Bank(Environment):
    def reset(self, task: Task) -> None:
        self._accounts = task.fields["accounts"]
        self._refunds: dict[str, int] = {}

    @tool
    def get_account(self, account: str) -> dict[str, str]:
        """An account: its kind.

        Args:
            account: number of the account
        """
        return {"account": account, "kind": self._account(account)["kind"]}

    @tool
    def get_price_list(self, kind: str) -> str:
        """What withdrawals cost with a kind of account.

        Args:
            kind: Light Blue, Evergreen or Basic
        """
        if kind not in POLICY:
            raise ToolFailure(f"there is no kind of account {kind}")
        return POLICY[kind]

    @tool
    def list_withdrawals(self, account: str, month: str) -> list[dict[str, str | int]]:
        """Cash withdrawals of a month: day, machine (own bank, or other bank), and the fee that was charged in EUR.

        Args:
            account: number of the account
            month: as in January
        """
        return [row for row in self._account(account)["withdrawals"] if row["month"] == month]

    @tool
    def refund(self, account: str, amount: Annotated[int, Bounded(ge=1, le=200)]) -> str:
        """Give back fees, in EUR.

        Args:
            account: number of the account
            amount: EUR
        """
        self._account(account)
        self._refunds[account] = self._refunds.get(account, 0) + amount
        return f"{amount} EUR are paid back to {account}"

    def _account(self, account: str) -> dict:
        if account not in self._accounts:
            raise ToolFailure(f"there is no account {account}")
        return self._accounts[account]

    def final_state(self) -> dict[str, dict[str, int]]:
        return {"refunds": self._refunds}


def reward(trajectory: Trajectory) -> float:
    """1 for the right refund and no other."""
    refunds = (trajectory.final_state or {}).get("refunds", {})
    return float(
        refunds == trajectory.task.fields["state"]["refunds"] and trajectory.messages[-1]["role"] == "assistant"
    )


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"atm {split} {number}")
    accounts = {}
    for key in rng.sample(range(10_000, 99_999), 3):
        rows = []
        for month in MONTHS[:3]:
            for day in sorted(rng.sample(range(1, 29), rng.randint(3, 7))):
                machine = rng.choice(["own bank", "other bank", "other bank"])
                rows.append(
                    {"month": month, "day": day, "machine": machine, "fee": FEE if machine == "other bank" else 0}
                )
        accounts[f"AC{key}"] = {"kind": rng.choice(list(POLICY)), "withdrawals": rows}
    account, month = rng.choice(list(accounts)), rng.choice(MONTHS[:3])
    paid = [row for row in accounts[account]["withdrawals"] if row["month"] == month and row["machine"] == "other bank"]
    wrong = FEE * min(FREE[accounts[account]["kind"]], len(paid))
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": PROMPT.format(account=account, month=month)},),
        fields={"accounts": accounts, "account": account, "state": {"refunds": {account: wrong} if wrong else {}}},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
