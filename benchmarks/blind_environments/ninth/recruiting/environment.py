"""Recruiting: who of the applicants meets all requirements of a position?"""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

LANGUAGES = ["Spanish", "Polish", "Arabic", "Dutch", "Finnish"]
LICENCES = ["forklift", "crane", "lorry", "boat"]
TOWNS = ["Lyon", "Ghent", "Porto", "Turku", "Graz"]
JOBS = ["warehouse lead", "dispatcher", "yard supervisor", "fleet planner", "site manager"]
FIRST_NUMBER = {"train": 600, "validation": 6600, "held_out": 8600}


class Recruiting(Environment):
    def reset(self, task: Task) -> None:
        self._position: dict[str, str | int] = task.fields["position"]
        self._applicants: dict[str, dict[str, str | int]] = task.fields["applicants"]

    @tool
    def requirements(self) -> dict[str, str | int]:
        """Requirements of the position: language, licence, least years of experience, and town to live in."""
        return self._position

    @tool
    def applicants(self) -> list[str]:
        """Numbers of all applicants."""
        return list(self._applicants)

    @tool
    def read_letter(self, applicant: str) -> dict[str, str | int]:
        """What an applicant wrote: language, licence, years of experience and town.

        Args:
            applicant: number of the applicant
        """
        if applicant not in self._applicants:
            raise ToolFailure(f"there is no applicant {applicant}")
        return self._applicants[applicant]


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
    """1 for the applicant who meets all requirements."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def fitting(rng: random.Random, position: dict[str, str | int]) -> dict[str, str | int]:
    """An applicant who meets all requirements."""
    years = int(position["years"]) + rng.randint(0, 4)
    return {"language": position["language"], "licence": position["licence"], "years": years, "town": position["town"]}


def lacking(rng: random.Random, position: dict[str, str | int]) -> dict[str, str | int]:
    """An applicant who misses exactly one requirement."""
    person = fitting(rng, position)
    match rng.randrange(4):
        case 0:
            person["language"] = rng.choice([one for one in LANGUAGES if one != position["language"]])
        case 1:
            person["licence"] = rng.choice([one for one in LICENCES if one != position["licence"]])
        case 2:
            person["years"] = int(position["years"]) - rng.randint(1, 2)
        case _:
            person["town"] = rng.choice([one for one in TOWNS if one != position["town"]])
    return person


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"recruiting {split} {number}")
    position = {
        "language": rng.choice(LANGUAGES),
        "licence": rng.choice(LICENCES),
        "years": rng.randint(2, 8),
        "town": rng.choice(TOWNS),
    }
    people = [lacking(rng, position) for _ in range(rng.randint(4, 6))]
    chosen = fitting(rng, position)
    people.append(chosen)
    numbers = [f"A{one}" for one in rng.sample(range(100, 1000), len(people))]
    applicants = dict(zip(numbers, people, strict=True))
    answer = next(one for one, person in applicants.items() if person is chosen)
    text = (
        f"Vacancy {FIRST_NUMBER[split] + number}: we look for a {rng.choice(JOBS)}. Exactly one applicant meets all requirements. Who "
        "is it? End with the number of the applicant, as in <answer>A042</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"position": position, "applicants": applicants, "answer": answer},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
