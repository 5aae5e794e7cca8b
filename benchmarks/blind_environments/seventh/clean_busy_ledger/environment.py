"""Busy ledger: a ledger that is locked now and then; who asks again gets the answer."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

CLIENTS = [
    f"{head}{tail}"
    for head in ("Nor", "Sol", "Vex", "Tri", "Alt", "Qua")
    for tail in ("tech", "foods", "wood", "air", "pharm")
]
INSTRUCTIONS = (
    "The ledger has the entries of a client by quarter, 1 to 4. It is sometimes locked by another reader: ask again, at once, and it "
    "answers. What was the client's sum of the two quarters? Answer with a whole number: <final_output>1200</final_output>"
)


class Ledger(Environment):
    def reset(self, task: Task) -> None:
        self.client, self.sums = task.fields["client"], task.fields["sums"]
        self.locks = dict(task.fields["locks"])

    @tool
    def quarter(self, client: str, num: int) -> int | str:
        """The sum of a client's entries of a quarter.

        Args:
            client: the name
            num: the quarter, 1 to 4
        """
        if client != self.client or str(num) not in self.sums:
            return "no entries"
        if self.locks.get(str(num), 0) > 0:
            self.locks[str(num)] -= 1
            raise ToolFailure("the ledger is locked by another reader, try again")
        return self.sums[str(num)]


def reward(trajectory: Trajectory) -> float:
    """1 for the right sum. Failed calls cost nothing: nobody can foresee a lock."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    sums = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if text.count("<final_output>") != 1:
        return 0.0
    return float(last["role"] == "assistant" and sums == [trajectory.task.fields["answer"]])


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:40]


def held_out_tasks() -> list[Task]:
    return _tasks()[40:]


def _tasks() -> list[Task]:
    rng = random.Random("ledger")
    cases = rng.sample([(client, a, b) for client in CLIENTS for a in range(1, 5) for b in range(a + 1, 5)], 56)
    return [_task(index, *case, rng) for index, case in enumerate(cases)]


def _task(index: int, client: str, first: int, second: int, rng: random.Random) -> Task:
    sums = {str(num): rng.randint(100, 9000) for num in range(1, 5)}
    return Task(
        id=f"ledger-{index}",
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"Client {client}, quarters {first} and {second}."},
        ),
        fields={
            "client": client,
            "quarters": [first, second],
            "sums": sums,
            "locks": {str(first): rng.randint(0, 2), str(second): rng.randint(0, 1)},
            "answer": str(sums[str(first)] + sums[str(second)]),
        },
    )
