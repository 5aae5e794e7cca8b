"""Savings bank: an old system that writes amounts in its own way, pages its statements, and has an argument that it no longer reads."""

from __future__ import annotations

import random
import re
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

PAGE = 5
KINDS = ["RENT", "WAGE", "SHOP", "FUEL", "GIFT"]


class OldBank(Environment):
    def reset(self, task: Task) -> None:
        self._accounts: dict[str, list[list]] = task.fields["accounts"]

    @tool
    def statement(
        self, account: str, page: Annotated[int, Bounded(ge=1, le=20)] = 1, currency: str = "EUR"
    ) -> dict[str, str | int]:
        """Bookings of an account, five a page, the oldest first. Each is a text of kind and amount in euros with a comma before
        the cents and a dot after thousands; a trailing minus is a debit. `next` is the following page, 0 on the last one.

        Args:
            account: number of the account
            page: which page
            currency: without effect since 2002, when all accounts became EUR accounts; still taken for old terminals
        """
        if account not in self._accounts:
            raise ToolFailure(f"ACCOUNT {account} NOT FOUND")
        rows = self._accounts[account]
        shown = rows[(page - 1) * PAGE : page * PAGE]
        lines = "; ".join(f"{kind} {written(cents)}" for kind, cents in shown)
        return {"bookings": lines, "next": page + 1 if page * PAGE < len(rows) else 0}

    @tool
    def branch_hours(self) -> str:
        """When the branches are open."""
        return "MO-FR 0830-1600"


def written(cents: int) -> str:
    whole, rest = divmod(abs(cents), 100)
    return f"{whole:,}".replace(",", ".") + f",{rest:02}" + ("-" if cents < 0 else "")


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the right sum, in plain decimals."""
    return float(tagged(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"savings/{split}/{number}")
    accounts = {}
    for key in rng.sample(range(100_000, 999_999), 2):
        rows = [[rng.choice(KINDS), rng.choice([1, -1]) * rng.choice([rng.randint(150, 99_999), rng.randint(100_000, 450_000)])]
                for _ in range(rng.randint(4, 14))]  # fmt: skip
        accounts[str(key)] = rows
    account = rng.choice(list(accounts))
    kind = rng.choice([row[0] for row in accounts[account]])
    total = sum(row[1] for row in accounts[account] if row[0] == kind)
    sign, whole, rest = "-" if total < 0 else "", abs(total) // 100, abs(total) % 100
    prompt = (
        f"What do all bookings of the kind {kind} of account {account} come to, debits counted as negative? End with euros and cents "
        "in plain decimals, as in <answer>1250.30</answer> or <answer>-80.00</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={"accounts": accounts, "account": account, "kind": kind, "answer": f"{sign}{whole}.{rest:02}"},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
