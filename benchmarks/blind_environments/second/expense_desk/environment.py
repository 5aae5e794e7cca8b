"""Travel expenses: approve the receipts that the rules allow, and report what is paid out."""

import random
from decimal import Decimal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

LIMITS = {"meal": "40.00", "taxi": "60.00", "hotel": "150.00"}
SYSTEM = """You check travel expenses. A receipt is approved when its amount is at most the limit of its category:
meal 40.00, taxi 60.00, hotel 150.00 euros. Approve those receipts of the claim and no other. Then answer with the number of approved
receipts and what is paid out for them in euros, with two decimals:
<final_output>{"approved":0,"paid":"0.00"}</final_output>"""


class ExpenseDesk(Environment):
    def reset(self, task):
        self.claim = task.fields["claim"]
        self.receipts = {row["id"]: row for row in task.fields["receipts"]}
        self.approved = []

    @tool
    def claim_receipts(self, claim: str) -> list[dict]:
        """The receipts of a claim: id, category and amount in euros."""
        if claim != self.claim:
            raise ToolFailure(f"there is no claim {claim!r}")
        return list(self.receipts.values())

    @tool
    def approve(self, receipt: str) -> str:
        """Approve a receipt, for good.

        Args:
            receipt: its id
        """
        if receipt not in self.receipts:
            raise ToolFailure(f"there is no receipt {receipt!r}")
        if receipt in self.approved:
            raise ToolFailure(f"{receipt} is approved already")
        self.approved.append(receipt)
        return f"{receipt} is approved"

    @tool
    def payout(self, claim: str) -> str:
        """What is paid out for a claim: the sum of its approved receipts in euros."""
        if claim != self.claim:
            raise ToolFailure(f"there is no claim {claim!r}")
        cents = sum(int(float(self.receipts[one]["amount"]) * 100) for one in self.approved)
        return f"{cents // 100}.{cents % 100:02d}"

    def final_state(self):
        return {"approved": sorted(self.approved)}


report_reward = json_fields("final_output")
report_score = json_exact("final_output")


def reward(trajectory):
    """The report counts when the right receipts are approved."""
    if not trajectory.final_state or trajectory.final_state["approved"] != trajectory.task.fields["allowed"]:
        return 0.0
    return report_reward(trajectory).total


def scorer(trajectory):
    is_settled = (trajectory.final_state or {}).get("approved") == trajectory.task.fields["allowed"]
    return report_score(trajectory).value if is_settled else 0.0


def train_tasks(num=40):
    return [one_task("train", n) for n in range(num)]


def held_out_tasks(num=15):
    return [one_task("held-out", n) for n in range(num)]


def one_task(split, n):
    rng = random.Random(f"expenses {split} {n}")
    claim = f"{'T' if split == 'train' else 'H'}{rng.randint(1000, 9999)}"
    receipts = []
    for number in range(rng.randint(5, 8)):
        category = rng.choice(sorted(LIMITS))
        most = int(Decimal(LIMITS[category]) * 100)
        cents = rng.randint(most // 5, most * 3 // 2)
        receipts.append({"id": f"{claim}-{number + 1}", "category": category, "amount": f"{Decimal(cents) / 100:.2f}"})
    allowed = [row for row in receipts if Decimal(row["amount"]) <= Decimal(LIMITS[row["category"]])]
    if not allowed or len(allowed) == len(receipts):
        # A claim to decide on has some of both.
        receipts[0] |= {"category": "meal", "amount": "17.20"}
        receipts[1] |= {"category": "taxi", "amount": "71.50"}
        allowed = [row for row in receipts if Decimal(row["amount"]) <= Decimal(LIMITS[row["category"]])]
    paid = sum(Decimal(row["amount"]) for row in allowed)
    return Task(
        id=f"expenses-{split}-{n}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Please settle claim {claim}."}),
        fields={
            "claim": claim,
            "receipts": receipts,
            "allowed": sorted(row["id"] for row in allowed),
            "answer": {"approved": len(allowed), "paid": f"{paid:.2f}"},
        },
        seed=n,
    )
