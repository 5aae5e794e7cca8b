"""Who has to sign a claim for expenses."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You route claims for expenses by the sum of their receipts. Receipts that are void do not count.
A claim of more than 500 euros goes to the director, any other of more than 200 euros to the manager, all others to the clerk.
Answer with the role and the sum alone, for example: manager 350"""


class Expenses(Environment):
    def reset(self, task):
        self.claims = task.fields["claims"]
        self.receipts = task.fields["receipts"]

    @tool
    def claim(self, number: str) -> list[str] | str:
        """Numbers of the receipts of a claim.

        Args:
            number: for example C31
        """
        return self.claims.get(number, "no such claim")

    @tool
    def receipt(self, number: str) -> dict[str, str | int] | str:
        """Amount of a receipt in euros, and whether it is valid or void."""
        return self.receipts.get(number, "no such receipt")


def _role(total):
    if total >= 500:
        return "director"
    if total >= 200:
        return "manager"
    return "clerk"


def _task(split, index, rng):
    numbers = [f"C{number}" for number in rng.sample(range(10, 100), 3)]
    receipt_numbers = iter(rng.sample(range(1000, 10000), 9))
    claims, receipts = {}, {}
    for number in numbers:
        claims[number] = [str(next(receipt_numbers)) for _ in range(rng.randint(2, 3))]
        for receipt in claims[number]:
            receipts[receipt] = {
                "amount": 50 * rng.randint(1, 6),
                "status": rng.choice(("valid", "valid", "valid", "void")),
            }
    own = [receipts[receipt] for receipt in claims[numbers[0]]]
    total = sum(receipt["amount"] for receipt in own if receipt["status"] == "valid")
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Who signs claim {numbers[0]}?"},
        ),
        fields={"claims": claims, "receipts": receipts, "answer": f"{_role(total)} {total}"},
    )


def train_tasks():
    rng = random.Random("claims a")
    return [_task("train", index, rng) for index in range(64)]


def held_out_tasks():
    rng = random.Random("claims b")
    return [_task("held-out", index, rng) for index in range(32)]


def reward(trajectory):
    """Half for the right sum, half for the right role."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    said = (last.get("content") or "").split()
    role, total = trajectory.task.fields["answer"].split()
    return 0.5 * (said[0] == role) + 0.5 * (said[1] == total) if len(said) == 2 else 0.0


def scorer(trajectory):
    final = trajectory.messages[-1]
    if final["role"] != "assistant" or final.get("tool_calls"):
        return 0.0
    return float(" ".join((final.get("content") or "").split()) == trajectory.task.fields["answer"])
