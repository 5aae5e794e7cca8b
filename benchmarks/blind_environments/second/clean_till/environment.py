"""A till in a country without one- and two-cent coins: cash totals are rounded to five cents, cards are charged to the cent."""

from __future__ import annotations

import random
from collections import Counter
from typing import Annotated, Literal

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task, Trajectory

SYSTEM = """You work at a till. Ring up what the customer buys and nothing else, then ask the till what is to pay. Cash totals are rounded to
the nearest five cents (1 and 2 down, 3 and 4 up); cards are charged to the cent. Answer with both the sum of the articles and what is
to pay, in cents:
<final_output>{"sum":0,"to_pay":0}</final_output>"""
GOODS = {
    "train": ["bread", "milk", "apples", "coffee", "cheese", "rice", "soap", "eggs"],
    "held_out": ["butter", "pears", "tea", "honey", "salt", "beans"],
}


def rounded(cents: int) -> int:
    """To the nearest five cents."""
    return (cents + 2) // 5 * 5


class Till(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.prices: dict[str, int] = task.fields["prices"]
        self.rung: Counter[str] = Counter()

    @tool
    def ring_up(self, article: str, pieces: Annotated[int, Bounded(ge=1, le=20)] = 1) -> dict[str, int]:
        """Ring up an article, and return its price for one piece and for all in cents.

        Args:
            article: its name
            pieces: how many
        """
        if article not in self.prices:
            raise ToolFailure(f"the till knows no {article!r}")
        self.rung[article] += pieces
        return {"one": self.prices[article], "all": self.prices[article] * pieces}

    @tool
    def to_pay(self, method: Literal["cash", "card"]) -> dict[str, int]:
        """The sum of what was rung up, and what is to pay for it, in cents. Cash is rounded to five cents."""
        total = sum(self.prices[article] * pieces for article, pieces in self.rung.items())
        return {"sum": total, "to_pay": rounded(total) if method == "cash" else total}

    def final_state(self) -> dict[str, dict[str, int]]:
        return {"rung": dict(self.rung)}


_report = json_fields("final_output")
_exact = json_exact("final_output")


def reward(trajectory: Trajectory) -> float:
    state = trajectory.final_state
    return _report(trajectory).total if state and state["rung"] == trajectory.task.fields["basket"] else 0.0


def scorer(trajectory: Trajectory) -> float:
    rung = (trajectory.final_state or {}).get("rung")
    return _exact(trajectory).value if rung == trajectory.task.fields["basket"] else 0.0


def train_tasks(num: int = 36) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 12) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"till {split} {index}")
    prices = {name: rng.randint(49, 1299) for name in GOODS[split]}
    basket = {name: rng.randint(1, 6) for name in rng.sample(GOODS[split], 3)}
    method = rng.choice(("cash", "cash", "card"))
    total = sum(prices[name] * pieces for name, pieces in basket.items())
    remainder = total % 5
    in_cash = total - remainder if remainder < 3 else total + 5 - remainder
    bought = ", ".join(f"{pieces} x {name}" for name, pieces in basket.items())
    return Task(
        id=f"till-{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Receipt {index + 1}: {bought}; the customer pays by {method}."},
        ),
        fields={
            "prices": prices,
            "basket": basket,
            "method": method,
            "answer": {"sum": total, "to_pay": in_cash if method == "cash" else total},
        },
        seed=index,
    )
