"""Refund desk: refund what may be refunded, refuse the rest."""

from __future__ import annotations

import random
from typing import Literal

from sparring.environments import StatefulEnvironment, tool
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

ITEMS = ["kettle", "lamp", "chair", "radio", "scarf", "drill", "tent", "mixer"]
MAX_DAYS = 30
INSTRUCTIONS = (
    "You handle returns. Look the order up with `order`. An order is refunded when it was delivered 30 days ago or less and was "
    "no final sale; then call `refund`. Otherwise call `refuse` with the reason: late, or final_sale (also when it is late as "
    "well). Then tell the customer in a sentence that the order was refunded, or that the refund was refused."
)


class RefundDesk(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.record = task.fields["order"]
        self.decisions: dict[str, str] = {}

    @tool
    def order(self, number: str) -> dict[str, str | int | bool] | str:
        """What was ordered, for how much, how many days ago it came, and whether it was a final sale."""
        return self.record if number == self.record["number"] else "no such order"

    @tool
    def refund(self, number: str) -> str:
        """Pay an order back."""
        return self._decide(number, "refunded")

    @tool
    def refuse(self, number: str, reason: Literal["late", "final_sale"]) -> str:
        """Refuse to pay an order back.

        Args:
            number: of the order
            reason: why
        """
        return self._decide(number, f"refused: {reason}")

    def _decide(self, number: str, decision: str) -> str:
        if number != self.record["number"]:
            return "no such order"
        if number in self.decisions:
            return "this order was decided on already"
        self.decisions[number] = decision
        return "done"

    def final_state(self) -> dict[str, dict[str, str]]:
        return {"decisions": self.decisions}


def reward(trajectory: Trajectory) -> float:
    """1 when the order was handled as the rules say."""
    order, last = trajectory.task.fields["order"], trajectory.messages[-1]
    if last["role"] != "assistant" or not last.get("content"):
        return 0.0
    looked_up = any(call["tool"] == "order" and call["error"] is None for call in trajectory.transitions)
    is_due = order["days"] <= MAX_DAYS and not order["final_sale"]
    told = last["content"].lower()
    handled = "refunded" in told if is_due else "refused" in told
    both = "refunded" in told and "refused" in told
    return float(looked_up and handled and not both)


scorer = state_difference("state")


def train_tasks() -> list[Task]:
    return _tasks()[:40]


def held_out_tasks() -> list[Task]:
    return _tasks()[40:]


def _tasks() -> list[Task]:
    rng = random.Random("refunds")
    numbers = rng.sample(range(10000, 99999), 56)
    return [_task(str(number), rng) for number in numbers]


def _task(number: str, rng: random.Random) -> Task:
    days = rng.randint(1, 30) if rng.random() < 0.65 else rng.randint(31, 90)
    final_sale = rng.random() < 0.25
    order = {
        "number": number,
        "item": rng.choice(ITEMS),
        "price": rng.randint(9, 240),
        "days": days,
        "final_sale": final_sale,
    }
    decision = "refused: final_sale" if final_sale else "refused: late" if days > MAX_DAYS else "refunded"
    text = f"I do not like the {order['item']} from order {number}. I want my money back."
    return Task(
        id=f"order-{number}",
        messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": text}),
        fields={"order": order, "state": {"decisions": {number: decision}}},
    )
