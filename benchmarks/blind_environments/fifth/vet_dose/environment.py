"""A vet's assistant works out doses: mg per kg of body weight, up to a limit."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

GUIDE = {
    "meloxicam": {"mg_per_kg": 0.1, "at_most": 5.0},
    "amoxicillin": {"mg_per_kg": 12.5, "at_most": 500.0},
    "gabapentin": {"mg_per_kg": 8.0, "at_most": 300.0},
    "carprofen": {"mg_per_kg": 2.2, "at_most": 100.0},
}
PATIENTS = ["Bella", "Charlie", "Duke", "Elsa", "Fritz", "Ginger", "Hazel", "Igor", "Joy", "Kiki", "Lucky", "Mimi"]


class Practice(Environment):
    def reset(self, task: Task) -> None:
        self.records = task.fields["records"]

    @tool
    def weight(self, patient: str) -> float:
        """Body weight of a patient in kilograms, at the last visit.

        Args:
            patient: name of the animal
        """
        if patient not in self.records:
            raise LookupError(f"no record of {patient}")
        return float(self.records[patient]["grams"])

    @tool
    def guideline(self, drug: str) -> dict[str, float]:
        """Milligrams per kilogram of body weight, and the highest single dose in milligrams.

        Args:
            drug: generic name
        """
        if drug not in GUIDE:
            raise LookupError(f"{drug} is not in the guide")
        return GUIDE[drug]


def _dose(trajectory: Trajectory) -> float | None:
    last = trajectory.messages[-1]
    found = re.search(r"<dose>([\d.]+) mg</dose>", str(last.get("content"))) if last["role"] == "assistant" else None
    return float(found[1]) if found and found[1].count(".") < 2 and found[1] != "." else None


def reward(trajectory: Trajectory) -> float:
    dose, right = _dose(trajectory), trajectory.task.fields["dose"]
    return 1.0 if dose is not None and abs(dose - right) <= 0.02 * right else 0.0


def scorer(trajectory: Trajectory) -> float:
    fields, dose = trajectory.task.fields, _dose(trajectory)
    rule = GUIDE[fields["drug"]]
    kg = fields["records"][fields["patient"]]["grams"] / 1000
    right = min(rule["mg_per_kg"] * kg, rule["at_most"])
    return float(dose is not None and 0.98 * right <= dose <= 1.02 * right)


def cases(split: str, patients: list[str], num: int) -> list[Task]:
    rng = random.Random(f"vet {split}")
    made = []
    for index in range(num):
        records = {name: {"grams": rng.randrange(2000, 45000, 100)} for name in patients}
        patient, drug = rng.choice(patients), rng.choice(sorted(GUIDE))
        rule = GUIDE[drug]
        dose = min(rule["mg_per_kg"] * records[patient]["grams"] / 1000, rule["at_most"])
        text = (
            f"{patient} needs {drug}. Work out the single dose from the weight and the guideline, never more than the highest "
            "dose. Answer with <dose>X mg</dose>, X being a number with one decimal or two."
        )
        made.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": text},),
                fields={"records": records, "patient": patient, "drug": drug, "dose": round(dose, 2)},
            )
        )
    return made


def train_tasks() -> list[Task]:
    return cases("train", PATIENTS[:6], 60)


def validation_tasks() -> list[Task]:
    return cases("validation", PATIENTS[6:9], 16)


def held_out_tasks() -> list[Task]:
    return cases("held_out", PATIENTS[9:], 16)
