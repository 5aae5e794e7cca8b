"""The order desk of a wholesaler: what should be done about a customer's orders?"""

import random
import re
from collections.abc import Sequence
from typing import Literal

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

ACTIONS = ("expedite", "combine", "leave")
PROCEDURE = """\
A customer asks about the orders. Only open orders count, shipped and cancelled ones do not.
First call customer with the name to get the account, then orders with the account and the status.
- An open order is 10 days old or older: expedite.
- Else, two open orders or more: combine.
- Else: leave.
End with one line and nothing else: <action>expedite, combine or leave</action>"""


class OrderDesk(Environment):
    """Accounts and orders of the day."""

    def reset(self, task: Task) -> None:
        self.account = task.fields["account"]
        self.name = task.fields["name"]
        self.rows = task.fields["orders"]

    @tool
    def customer(self, name: str) -> str:
        """Account number of a customer."""
        return self.account if name == self.name else f"no account under the name {name}"

    @tool
    def orders(self, account: str, status: Literal["open", "shipped", "cancelled"]) -> list[dict[str, str | int]]:
        """Orders of an account that have the given status.

        Args:
            account: number of the account
            status: only orders with this status are listed
        """
        if account != self.account:
            raise LookupError(f"no account {account}")
        return [dict(row) for row in self.rows]

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return [
            tool_call("customer", name=task.fields["name"]),
            tool_call("orders", account=task.fields["account"], status="open"),
            answer(f"<action>{task.fields['action']}</action>"),
        ]


def decided(rows: list[dict]) -> str:
    ages = [row["days"] for row in rows if row["status"] == "open"]
    if any(age >= 10 for age in ages):
        return "expedite"
    return "combine" if len(ages) > 1 else "leave"


def reward(trajectory: Trajectory) -> Reward:
    message = trajectory.messages[-1]
    match = re.fullmatch(r"\s*<action>([a-z]+)</action>\s*", str(message.get("content") or ""))
    named = match[1] if match is not None and message["role"] == "assistant" else ""
    parts = {
        "form": 0.15 if named in ACTIONS else 0.0,
        "right": 0.85 if named == trajectory.task.fields["action"] else 0.0,
    }
    return Reward(total=parts["form"] + parts["right"], components=parts)


def scorer(trajectory: Trajectory) -> float:
    end = trajectory.messages[-1]
    text = end["content"] if end["role"] == "assistant" and end.get("content") else ""
    return 1.0 if text.strip() == f"<action>{trajectory.task.fields['action']}</action>" else 0.0


def train_tasks() -> list[Task]:
    return _tasks("train", ("Barr", "Cole", "Dunn", "Eden", "Ford"), 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", ("Gale", "Hart"), 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", ("Iver", "Joss", "Kerr"), 15)


def _tasks(split: str, families: Sequence[str], num: int) -> list[Task]:
    rng = random.Random(f"orders:{split}")
    firms = [
        f"{one} {two}"
        for one in families
        for two in ("Foods", "Tools", "Paper", "Glass", "Linen", "Seeds", "Paints", "Cycles", "Lamps", "Toys")
    ]
    made: list[Task] = []
    while len(made) < num:
        rows = [
            {
                "order": rng.randint(1000, 9999),
                "status": rng.choice(("open", "open", "shipped", "cancelled")),
                "days": rng.randint(0, 16),
            }
            for _ in range(rng.randint(2, 4))
        ]
        action = decided(rows)
        if action != ACTIONS[len(made) % 3]:
            continue
        name, account = firms[len(made) % len(firms)], f"{rng.randint(100, 999)}-{rng.randint(10, 99)}"
        text = (
            f"This is {name}, about delivery week {rng.randint(1, 52)}: is there anything to do about our "
            f"{rng.randint(2, 90)} crates?"
        )
        made.append(
            Task(
                id=f"{split}-{len(made)}",
                messages=({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text}),
                fields={"name": name, "account": account, "orders": rows, "action": action},
            )
        )
    return made
