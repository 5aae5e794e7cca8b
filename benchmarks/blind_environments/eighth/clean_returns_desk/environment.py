"""Returns: some wishes must be refused. Then nothing may be booked, and the clause that forbids it is to be named."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Score, Task, Trajectory

GOODS = ["boots", "jacket", "tent", "stove", "rope", "helmet", "map case", "lantern"]
SYSTEM = (
    "You decide on returns of an outdoor shop. Look at the purchase and at the terms. If the return is in order, book it with "
    "book_return and end with <answer>BOOKED</answer>. If it is not, book nothing and end with the clause of the terms that "
    "forbids it, as in <answer>T9</answer>. Where two clauses forbid it, name the one with the lower number."
)


class ReturnsDesk(Environment):
    def reset(self, task: Task) -> None:
        self._fields = task.fields
        self._booked: list[str] = []

    @tool
    def get_purchase(self, purchase: str) -> dict[str, str | int | bool]:
        """A purchase: the article, days since delivery, whether it was worn, and whether it was on sale.

        Args:
            purchase: number of the purchase
        """
        return self._purchase(purchase)

    @tool
    def get_terms(self) -> dict[str, str]:
        """The terms of the shop: clause and text."""
        terms = self._fields["terms"]
        return {
            terms["late"]: f"Goods go back within {terms['days']} days of delivery.",
            terms["worn"]: "Worn goods are not taken back.",
            terms["sale"]: "Goods on sale are not taken back.",
        }

    @tool
    def book_return(self, purchase: str) -> str:
        """Book a return; it cannot be undone.

        Args:
            purchase: number of the purchase
        """
        self._purchase(purchase)
        self._booked.append(purchase)
        return f"return of {purchase} is booked"

    def _purchase(self, purchase: str) -> dict:
        if purchase not in self._fields["purchases"]:
            raise ToolFailure(f"there is no purchase {purchase}")
        return self._fields["purchases"][purchase]

    def final_state(self) -> dict[str, list[str]]:
        return {"booked": self._booked}


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


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
    """1 for the right decision: the booking and the words."""
    fields = trajectory.task.fields
    booked = (trajectory.final_state or {}).get("booked")
    wanted = [fields["purchase"]] if fields["answer"] == "BOOKED" else []
    return float(tagged(trajectory) == fields["answer"] and booked == wanted)


in_words = exact_match("answer")


def scorer(trajectory: Trajectory) -> Score:
    """1 when the purchase, held against the terms anew, calls for what was booked and said."""
    fields = trajectory.task.fields
    bought, terms = fields["purchases"][fields["purchase"]], fields["terms"]
    against = (
        [terms["late"]] * (bought["days"] > terms["days"])
        + [terms["worn"]] * bought["worn"]
        + [terms["sale"]] * bought["sale"]
    )
    calls = [
        step["arguments"]["purchase"]
        for step in trajectory.transitions
        if step["tool"] == "book_return" and step["error"] is None
    ]
    is_booked_right = calls == ([] if against else [fields["purchase"]])
    words = in_words(trajectory).value
    return Score(float(is_booked_right and words == 1), {"booking": float(is_booked_right), "words": words})


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"returns {split} {number}")
    late, worn, sale = (f"T{one}" for one in rng.sample(range(2, 30), 3))
    terms = {"late": late, "worn": worn, "sale": sale, "days": rng.choice([14, 30, 60])}
    purchases = {}
    for key in rng.sample(range(10**5, 10**6), 4):
        purchases[f"P{key}"] = {
            "article": rng.choice(GOODS),
            "days": rng.randint(1, terms["days"]),
            "worn": False,
            "sale": False,
        }
    purchase = rng.choice(list(purchases))
    bought = purchases[purchase]
    reasons = [(), ("late",), ("worn",), ("sale",), (), tuple(rng.sample(["late", "worn", "sale"], 2))][number % 6]
    for other in purchases.values():
        if other is not bought:
            other["worn"], other["sale"] = rng.random() < 0.3, rng.random() < 0.3
    bought["days"] += terms["days"] if "late" in reasons else 0
    bought["worn"], bought["sale"] = "worn" in reasons, "sale" in reasons
    clauses = sorted((terms[reason] for reason in reasons), key=lambda clause: int(clause[1:]))
    text = f"I would like to give back the {bought['article']} of purchase {purchase}."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": text}),
        fields={
            "terms": terms,
            "purchases": purchases,
            "purchase": purchase,
            "answer": clauses[0] if clauses else "BOOKED",
        },
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
