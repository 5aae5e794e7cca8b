"""Hospital: which doctor is in charge of a patient?"""

from __future__ import annotations

import json
import random
import re
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

WARDS = ["A1", "A2", "B1", "B2", "C1", "C2", "D1", "D2"]
DOCTORS = [
    "Adler",
    "Brandt",
    "Chen",
    "Diaz",
    "Eriksen",
    "Fontaine",
    "Gupta",
    "Haas",
    "Ito",
    "Jensen",
    "Kowal",
    "Lind",
    "Mora",
]
INSTRUCTIONS = (
    "You work at a hospital's desk. `patient` shows in which ward a patient lies, by the patient's number; `doctor` says who is in "
    "charge of a ward today. Answer with the doctor's name: <final_output>Chen</final_output>"
)


class Hospital(Environment):
    def reset(self, task: Task) -> None:
        self.patients, self.rota = json.loads(task.fields["patients"]), task.fields["rota"]

    @tool
    def patient(self, number: Annotated[int, Bounded(ge=1, le=999)]) -> str:
        """The ward of a patient.

        Args:
            number: of the patient
        """
        record = self.patients.get(str(number))
        return f"ward {record['ward']}, bed {record['bed']}" if record else f"no patient {number}"

    @tool
    def doctor(self, ward: str) -> str:
        """Who is in charge of a ward today."""
        return self.rota.get(ward, "no such ward")


def reward(trajectory: Trajectory) -> float:
    """1 for the right doctor."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    named = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if text.count("<final_output>") != 1:
        return 0.0
    return float(last["role"] == "assistant" and named == [trajectory.task.fields["answer"]])


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:46]


def held_out_tasks() -> list[Task]:
    return _tasks()[46:]


def _tasks() -> list[Task]:
    rng = random.Random("hospital")
    return [_task(number, rng) for number in rng.sample(range(3, 320), 60)]


def _task(number: int, rng: random.Random) -> Task:
    rota = dict(zip(WARDS, rng.sample(DOCTORS, len(WARDS)), strict=True))
    numbers = [number, *rng.sample([other for other in range(1, 400) if other != number], 5)]
    # The register's export has numbers of three digits.
    patients = {f"{each:03}": {"ward": rng.choice(WARDS), "bed": rng.randint(1, 30)} for each in sorted(numbers)}
    return Task(
        id=f"patient-{number}",
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"Which doctor is in charge of patient {number}?"},
        ),
        fields={
            "number": number,
            "patients": json.dumps(patients),
            "rota": rota,
            "answer": rota[patients[f"{number:03}"]["ward"]],
        },
    )
