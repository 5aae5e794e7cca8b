"""A clinic's archive: page through visits, answer a question about a patient."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

PAGE = 4
DOCTORS = ["Ito", "Khan", "Lopez", "Meyer", "Novak"]
REASONS = ["cough", "fracture", "vaccination", "rash", "check-up", "migraine"]


class Archive(Environment):
    """Read-only; visits are sorted by patient number."""

    def reset(self, task: Task) -> None:
        self._visits: list[dict] = sorted(task.fields["visits"], key=lambda visit: visit["patient"])

    @tool
    def list_visits(self, page: int = 1) -> dict:
        """Visits, four a page, sorted by patient number.

        Args:
            page: the first page is 1
        """
        num_pages = -(-len(self._visits) // PAGE)
        if not 1 <= page <= num_pages:
            return {"error": f"pages are 1 to {num_pages}"}
        begin = page * PAGE
        return {"page": page, "pages": num_pages, "visits": self._visits[begin : begin + PAGE]}


def _said(trajectory: Trajectory) -> str:
    last = trajectory.messages[-1]
    return (last.get("content") or "").strip().lower() if last["role"] == "assistant" else ""


def reward(trajectory: Trajectory) -> float:
    return float(_said(trajectory) == trajectory.task.fields["doctor"].lower())


def scorer(trajectory: Trajectory) -> float:
    said = _said(trajectory).removeprefix("dr. ")
    return float(said == trajectory.task.fields["doctor"].lower())


def _make(split: str, num: int) -> list[Task]:
    rng = random.Random(f"clinic.{split}")
    made = []
    for number in range(num):
        patients = rng.sample(range(1000, 9999), 11)
        visits = [{"patient": p, "doctor": rng.choice(DOCTORS), "reason": rng.choice(REASONS)} for p in patients]
        visit = rng.choice(visits)
        question = f"Which doctor did patient {visit['patient']} see? Answer with the surname only."
        made.append(
            Task(
                id=f"clinic-{split}-{number}",
                messages=({"role": "user", "content": question},),
                fields={"visits": visits, "doctor": visit["doctor"]},
            )
        )
    return made


def train_tasks() -> list[Task]:
    return _make("train", 72)


def held_out_tasks() -> list[Task]:
    return _make("held_out", 36)
