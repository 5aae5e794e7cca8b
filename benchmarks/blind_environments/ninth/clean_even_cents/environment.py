"""Savings bank: how much interest does an account get for a year?"""

from __future__ import annotations

import random
import re
from decimal import ROUND_HALF_EVEN, Decimal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

KINDS = ["Junior", "Home", "Harvest", "Classic"]
FIRST_NUMBER = {"train": 100, "validation": 300, "held_out": 500}


class Savings(Environment):
    def reset(self, task: Task) -> None:
        self._accounts: dict[str, dict[str, str]] = task.fields["accounts"]
        self._rates: dict[str, str] = task.fields["rates"]

    @tool
    def account(self, number: str) -> dict[str, str]:
        """Kind and balance of an account. The balance, in euros, stayed the same all year.

        Args:
            number: number of the account
        """
        if number not in self._accounts:
            raise ToolFailure(f"there is no account {number}")
        return self._accounts[number]

    @tool
    def yearly_rate(self, kind: str) -> str:
        """Interest of a kind of account, in percent of the balance for a year.

        Args:
            kind: kind of the account
        """
        if kind not in self._rates:
            raise ToolFailure(f"there is no kind {kind}")
        return self._rates[kind]


CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)


def final_answer(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message. Code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", str(last.get("content") or ""))
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the right amount."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def interest(balance: str, rate: str) -> str:
    """Interest in euros, to the cent."""
    return str((Decimal(balance) * Decimal(rate) / 100).quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN))


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"savings {split} {number}")
    rates = {kind: f"{rng.choice([0.5, 1.5, 2.5, 3.5])}" for kind in KINDS}
    accounts = {
        f"{key}": {"kind": rng.choice(KINDS), "balance": f"{rng.randint(200, 9000)}.{rng.choice([0, 0, 0, 3, 7])}0"}
        for key in rng.sample(range(10000, 99999), 4)
    }
    chosen = rng.choice(list(accounts))
    text = (
        f"Statement {FIRST_NUMBER[split] + number}: how much interest does account {chosen} get for the whole year? Round to the cent; "
        "our house rounds exact half cents to the even cent, so 2.125 becomes 2.12 and 2.135 becomes 2.14. End with the euros, as in "
        "<answer>12.40</answer>."
    )
    fields = {
        "rates": rates,
        "accounts": accounts,
        "account": chosen,
        "answer": interest(accounts[chosen]["balance"], rates[accounts[chosen]["kind"]]),
    }
    return Task(id=f"{split}-{number}", messages=({"role": "user", "content": text},), fields=fields, seed=number)


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
