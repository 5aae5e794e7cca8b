"""A hospital ward's pharmacy checks prescriptions against the daily limits of two formularies."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

SYSTEM = """You check prescriptions. Look up the patient's ward, then the drug in the formulary of that ward (adult or children).
Compare the dose of a whole day with the drug's limit for a day; a dose that equals the limit is fine. Answer with both in micrograms
(1 mg = 1000 micrograms, 1 g = 1000 mg) and a verdict, "ok" or "too much":
<final_output>{"daily":0,"limit":0,"verdict":""}</final_output>"""

# Drug: highest dose for a day, as the formulary prints it.
PRINTED = {
    "paracetamol": "4 g", "ibuprofen": "2400 mg", "amoxicillin": "3 g", "levothyroxine": "200 mcg", "digoxin": "250 mcg",
    "metformin": "2 g", "ramipril": "10 mg", "furosemide": "80 mg", "cefazolin": "6 g", "folic acid": "800 mcg",
    "omeprazole": "40 mg", "sertraline": "200 mg", "valproate": "2500 mg", "clonidine": "900 mcg", "penicillin V": "2 g",
    "amlodipine": "10 mg",
}  # fmt: skip
MICROGRAMS = {"mcg": 1, "mg": 1_000, "g": 1_000_000}


class Formulary(ABC):
    """Highest daily doses by drug."""

    scale = {"mcg": 1, "mg": 1_000}

    def __init__(self, printed: Mapping[str, str]) -> None:
        self.printed = printed

    def limit(self, drug: str) -> int:
        """In micrograms."""
        amount, unit = self.printed[drug].split()
        return int(amount) * self.scale.get(unit, 1_000) // self.divisor()

    @abstractmethod
    def divisor(self) -> int: ...


class AdultFormulary(Formulary):
    def divisor(self) -> int:
        return 1


class ChildrenFormulary(Formulary):
    """A fifth of an adult's dose."""

    def divisor(self) -> int:
        return 5


class WardPharmacy(Environment):
    def reset(self, task: Task) -> None:
        self.patients: Mapping[str, str] = task.fields["patients"]
        self.formularies = {"adult": AdultFormulary(PRINTED), "children": ChildrenFormulary(PRINTED)}

    @tool
    def patient(self, number: str) -> dict[str, str]:
        """The ward of a patient."""
        if number not in self.patients:
            raise ToolFailure(f"there is no patient {number}")
        return {"number": number, "ward": self.patients[number]}

    @tool
    def drug(self, name: str, formulary: Literal["adult", "children"]) -> dict[str, str | int]:
        """A drug's limit for a day, in micrograms.

        Args:
            name: as on the prescription
            formulary: that of the patient's ward
        """
        if name not in PRINTED:
            raise ToolFailure(f"{name} is in no formulary")
        return {"drug": name, "daily_limit": self.formularies[formulary].limit(name)}


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 16) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"pharmacy-{split}-{index}")
    drugs = sorted(PRINTED)
    name = rng.choice(drugs[:11] if split == "train" else drugs[11:])
    ward = rng.choice(("adult", "children"))
    numbers = rng.sample(range(1000, 5000) if split == "train" else range(5000, 9000), 3)
    patients = {f"P{number}": rng.choice(("adult", "children")) for number in numbers}
    asked = f"P{numbers[0]}"
    patients[asked] = ward
    amount, unit = PRINTED[name].split()
    limit = int(amount) * MICROGRAMS[unit] // (5 if ward == "children" else 1)
    times = rng.choice((2, 3, 4))
    # From well below the limit to well above it.
    each = limit * rng.choice((30, 50, 80, 100, 120, 150, 300)) // 100 // times
    daily = each * times
    dose = next(f"{each // size} {unit}" for unit, size in reversed(MICROGRAMS.items()) if each % size == 0)
    answer = {"daily": daily, "limit": limit, "verdict": "ok" if daily <= limit else "too much"}
    user = f"Patient {asked}: {name}, {dose}, {times} times a day."
    return Task(
        id=f"prescription-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
        fields={"patients": patients, "answer": answer},
        seed=index,
    )
