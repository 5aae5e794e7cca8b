"""Who has to approve an expense claim?"""

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

POLICY = """\
You route expense claims. Rules, the first that applies counts:
1. A claim without receipt goes to 'audit'.
2. A claim of more than 500 goes to 'director'.
3. A claim for travel goes to 'travel'.
4. Everything else goes to 'lead'.
Look the claim up first. Answer with the desk alone, like <final_output>lead</final_output>."""

KINDS = ["travel", "travel", "meals", "books", "software", "phone"]
AMOUNTS = list(range(50, 700, 50)) + [500] * 4


class ExpenseDesk(Environment):
    def reset(self, task):
        self.claims = {claim["id"]: claim for claim in task.fields["claims"]}

    @tool
    def claim(self, id: str) -> dict[str, str]:
        """Who claims how much for what.

        Args:
            id: number of the claim
        """
        one = self.claims.get(id)
        return (
            {"error": "no such claim"} if one is None else {key: str(one[key]) for key in ("person", "kind", "amount")}
        )

    @tool
    def has_receipt(self, id: str) -> bool:
        """Whether a receipt was handed in with a claim.

        Args:
            id: number of the claim
        """
        return bool(self.claims.get(id, {}).get("receipt"))


def desk_of(claim):
    if not claim["receipt"]:
        return "audit"
    if claim["amount"] >= 500:
        return "director"
    if claim["kind"] == "travel":
        return "travel"
    return "lead"


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    found = re.search(r"<final_output>\s*(\w+)\s*</final_output>\s*$", last.get("content") or "")
    return float(found is not None and found[1] == trajectory.task.fields["answer"])


scorer = exact_match()


def build(split, rng, num):
    tasks = []
    for n in range(num):
        claims = []
        for number in rng.sample(range(1000, 9999), 3):
            claims.append(
                {
                    "id": f"C{number}",
                    "person": rng.choice(["Ana", "Bo", "Cy", "Di", "Ed"]),
                    "kind": rng.choice(KINDS),
                    "amount": rng.choice(AMOUNTS),
                    "receipt": rng.random() < 0.76,
                }
            )
        subject = claims[0]
        rng.shuffle(claims)
        tasks.append(
            Task(
                id=f"{split}-{n}",
                messages=(
                    {"role": "system", "content": POLICY},
                    {"role": "user", "content": f"Where does claim {subject['id']} go?"},
                ),
                fields={"claims": claims, "claim": subject["id"], "answer": desk_of(subject)},
            )
        )
    return tasks


def train_tasks():
    return build("train", random.Random(31), 40)


def held_out_tasks():
    return build("held-out", random.Random(32), 20)
