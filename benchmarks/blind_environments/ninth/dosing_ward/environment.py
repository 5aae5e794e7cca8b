"""Children's ward: how much of a drug is one dose for a patient, by the house's own drug list?"""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

DRUGS = {
    "amoxicillin": (45, "day", 3, 750),
    "clarithromycin": (14, "day", 2, 500),
    "ibuprofen": (8, "dose", 3, 400),
    "paracetamol": (15, "dose", 4, 1000),
    "ondansetron": (1, "dose", 2, 8),
    "cefuroxime": (25, "dose", 3, 1500),
}
"""Milligrams for each kilogram, what they are given for, doses in a day, most milligrams of a single dose."""
FIRST_NUMBER = {"train": 5000, "validation": 5400, "held_out": 5800}


class Ward(Environment):
    def reset(self, task: Task) -> None:
        self._beds: dict[str, dict[str, int | str]] = task.fields["beds"]

    @tool
    def patient(self, bed: str) -> dict[str, int | str]:
        """The patient in a bed: weight in kilograms, age in years, drug that is prescribed.

        Args:
            bed: number of the bed, such as B3
        """
        if bed not in self._beds:
            raise ToolFailure(f"there is no bed {bed}")
        return self._beds[bed]

    @tool
    def drug_list(self, drug: str) -> str:
        """What the drug list of the house says about a drug.

        Args:
            drug: name of the drug
        """
        if drug not in DRUGS:
            raise ToolFailure(f"{drug} is not on the list")
        amount, basis, times, most = DRUGS[drug]
        if basis == "day":
            text = f"{amount} mg for each kg of body weight per day, divided into {times} equal doses"
        else:
            text = f"{amount} mg for each kg of body weight per dose, up to {times} doses a day"
        return f"{drug}: {text}; a single dose never exceeds {most} mg"


CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)


def final_answer(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message. Code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", str(last.get("content") or ""))
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the right dose."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def single_dose(drug: str, weight: int) -> int:
    """Milligrams of one dose for a weight in kilograms."""
    amount, _, _, most = DRUGS[drug]
    return min(amount * weight, most)


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"ward {split} {number}")
    names = sorted(DRUGS)
    beds = {
        f"B{place}": {"weight": (weight := rng.randint(8, 48)), "age": max(1, weight // 4), "drug": rng.choice(names)}
        for place in rng.sample(range(1, 30), 5)
    }
    bed = rng.choice(list(beds))
    beds[bed]["drug"] = names[number % len(names)]
    text = (
        f"Chart {FIRST_NUMBER[split] + number}: how many milligrams of the prescribed drug does the patient in bed {bed} get as one "
        "single dose? Go by the drug list of the house. End with the number of milligrams, as in <answer>85</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"beds": beds, "bed": bed, "answer": str(single_dose(str(beds[bed]["drug"]), int(beds[bed]["weight"])))},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
