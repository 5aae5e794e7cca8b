"""A company's records: departments give access to their numbers, or refuse it."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Reward, Score, Task, Trajectory

SYSTEM = """You collect headcounts for the board. Ask each department that is named for access, once, before you read its headcount. A
department that refuses is left out of the sum and listed. Answer with two lines, the departments in alphabetical order, or none:
sum: 0
refused: none"""
DEPARTMENTS = {
    "train": ["Audit", "Brand", "Claims", "Design", "Energy", "Fleet", "Grants", "Hiring", "Imports"],
    "held_out": ["Judging", "Kiosks", "Legal", "Mining", "Navigation", "Optics"],
}


class Records:
    """Headcounts, who refuses access, and what was granted."""

    def __init__(self, headcounts: dict[str, int], refusing: list[str]) -> None:
        self._headcounts = headcounts
        self._refusing = frozenset(refusing)
        self.granted: set[str] = set()

    def ask(self, department: str) -> bool:
        self._check(department)
        if department in self._refusing:
            return False
        self.granted.add(department)
        return True

    def headcount(self, department: str) -> int:
        self._check(department)
        if not self.granted:
            raise ToolFailure(f"no access to {department}; ask for it first")
        return self._headcounts[department]

    def _check(self, department: str) -> None:
        if department not in self._headcounts:
            raise ToolFailure(f"there is no department {department!r}; there are {', '.join(sorted(self._headcounts))}")


class Headcount(Environment):
    def reset(self, task: Task) -> None:
        self.records = Records(task.fields["headcounts"], task.fields["refusing"])

    @tool
    def request_access(self, department: str) -> str:
        """Ask a department for access to its headcount: granted or refused."""
        return "granted" if self.records.ask(department) else "refused"

    @tool
    def headcount(self, department: str) -> int:
        """Headcount of a department that has granted access; an error for any other."""
        return self.records.headcount(department)


def _lines(trajectory: Trajectory) -> list[str]:
    last = trajectory.messages[-1]
    text = str(last.get("content") or "") if last["role"] == "assistant" else ""
    return text.strip().split("\n")


def scorer(trajectory: Trajectory) -> Score:
    answer = trajectory.task.fields["answer"]
    wanted = f"sum: {answer['sum']}\nrefused: {answer['refused']}"
    last = trajectory.messages[-1]
    return Score(float(last["role"] == "assistant" and str(last.get("content") or "").strip() == wanted))


def reward(trajectory: Trajectory) -> Reward:
    """0.8 for the sum and 0.2 for the refusals, given in this order and nothing else."""
    lines, answer = _lines(trajectory), trajectory.task.fields["answer"]
    if len(lines) != 2:
        return Reward(total=0.0, components={"sum": 0.0, "refused": 0.0})
    parts = {
        "sum": 0.8 * (lines[0] == f"sum: {answer['sum']}"),
        "refused": 0.2 * (lines[1] == f"refused: {answer['refused']}"),
    }
    return Reward(total=sum(parts.values()), components=parts)


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 15) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"headcount {split} {index}")
    departments = rng.sample(DEPARTMENTS[split], 5)
    headcounts = {name: rng.randint(11, 480) for name in departments}
    asked = rng.sample(departments, rng.randint(2, 4))
    refusing = [name for name in departments if rng.random() < 0.25]
    refused = sorted(set(asked) & set(refusing))
    total = sum(headcounts[name] for name in asked if name not in refusing)
    return Task(
        id=f"headcount-{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Report {index + 1}: headcount of {', '.join(asked)}."},
        ),
        fields={
            "headcounts": headcounts,
            "refusing": refusing,
            "asked": asked,
            "answer": {"sum": total, "refused": ", ".join(refused) or "none"},
        },
        seed=index,
    )
