"""Insurance: decide on claims by the rules of the handbook."""

from __future__ import annotations

import random
from typing import Literal

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

HANDBOOK = """You decide on claims. Look the claim up first. The rules, the first that fits:
1. A claim that was reported more than 30 days after the damage is rejected.
2. A claim of a policy without cover for its kind of damage is rejected.
3. A claim over 2000 euros is escalated.
4. All others are paid.
Call decide once."""
KINDS = ["water", "fire", "theft", "glass"]


def decision(claim: dict) -> str:
    if claim["days"] > 30 or claim["kind"] not in claim["covers"]:
        return "reject"
    return "escalate" if claim["amount"] > 1000 else "pay"


class Claims(Environment):
    def reset(self, task: Task) -> None:
        self.claim = task.fields["claim"]
        self.decided: str | None = None

    @tool
    def claim_details(self, number: str) -> dict:
        """All that is known about a claim: kind, euros, days until it was reported, kinds that the policy covers."""
        if number != self.claim["number"]:
            return {"error": "no such claim"}
        return dict(self.claim)

    @tool
    def decide(self, number: str, decision: Literal["pay", "reject", "escalate"]) -> str:
        """Decide on a claim; final."""
        if number != self.claim["number"]:
            return "error: no such claim"
        self.decided = decision
        return "noted"

    @property
    def is_done(self) -> bool:
        return self.decided is not None

    def final_state(self) -> dict:
        return {"decided": self.decided}


def reward(trajectory: Trajectory) -> float:
    state = trajectory.final_state or {}
    return float(state.get("decided") == decision(trajectory.task.fields["claim"]))


def scorer(trajectory: Trajectory) -> float:
    state = trajectory.final_state or {}
    return float(state.get("decided") == trajectory.task.fields["decision"])


def tasks(split: str, num: int) -> list[Task]:
    rng = random.Random(f"claims {split}")
    made = []
    for _ in range(num):
        claim = {
            "number": f"C{rng.randrange(10**5, 10**6)}",
            "kind": rng.choice(KINDS),
            "amount": rng.randrange(100, 4000, 10),
            "days": rng.choice([1, 5, 12, 29, 30, 31, 50]),
            "covers": sorted(rng.sample(KINDS, 3)),
        }
        messages = (
            {"role": "system", "content": HANDBOOK},
            {"role": "user", "content": f"Claim {claim['number']}, please."},
        )
        made.append(Task(id=claim["number"], messages=messages, fields={"claim": claim, "decision": decision(claim)}))
    return made


def train_tasks() -> list[Task]:
    return tasks("train", 120)


def held_out_tasks() -> list[Task]:
    return tasks("held_out", 40)
