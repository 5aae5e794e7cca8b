"""Telephone directory of a hospital group: find people and their extensions."""

from __future__ import annotations

import random
import re

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

FIRST = ["Karin", "Paul", "Nora", "Samuel", "Helena", "Marek", "Anton", "Silvia"]
FAMILY = ["Berg", "Holm", "Novak", "Lang", "Petersen", "Ricci", "Falk", "Dumont"]
FAMILY_WITH_MARKS = ["Müller", "Søgaard", "Núñez", "Kovács", "Grünwald", "Bešić"]
CLINICS = ["surgery", "radiology", "pharmacy", "kitchen", "laboratory"]
FIRST_NUMBER = {"train": 40, "validation": 340, "held_out": 640}


class Directory(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        database = self.state.database
        database.execute("CREATE TABLE people (id TEXT PRIMARY KEY, name TEXT, clinic TEXT, extension TEXT)")
        for row in task.fields["people"]:
            database.execute("INSERT INTO people VALUES (?, ?, ?, ?)", row)

    @tool
    def find_person(self, name: str) -> list[dict[str, str]]:
        """People with a name, each with id and clinic. Upper and lower case do not matter.

        Args:
            name: first name and family name
        """
        rows = self.state.database.execute(
            "SELECT id, clinic FROM people WHERE lower(name) = lower(?) ORDER BY id", (name.strip(),)
        ).fetchall()
        return [{"id": row[0], "clinic": row[1]} for row in rows]

    @tool
    def extension(self, person: str) -> str:
        """Telephone extension of a person.

        Args:
            person: id of the person
        """
        row = self.state.database.execute("SELECT extension FROM people WHERE id = ?", (person,)).fetchone()
        if row is None:
            raise ToolFailure(f"there is no person {person}")
        return row[0]


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
    """1 for the right extension."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"directory {split} {number}")
    families = [*rng.sample(FAMILY, 5), *rng.sample(FAMILY_WITH_MARKS, 2)]
    names = [f"{rng.choice(FIRST)} {family}" for family in families]
    wanted = names[-1] if number % 4 == 1 else names[0]
    names.append(wanted)  # a namesake in another clinic
    ids, extensions = rng.sample(range(1000, 9999), 8), rng.sample(range(10000, 99999), 8)
    clinics = [rng.choice(CLINICS) for _ in names]
    place = names.index(wanted)
    clinics[-1] = rng.choice([clinic for clinic in CLINICS if clinic != clinics[place]])
    people = [
        [f"H{key}", name.upper(), clinic, str(extension)]
        for key, name, clinic, extension in zip(ids, names, clinics, extensions, strict=True)
    ]
    answer = people[place][3]
    clinic = clinics[place]
    rng.shuffle(people)
    text = (
        f"Request {FIRST_NUMBER[split] + number}: which extension does {wanted} of the {clinic} have? There may be people of the "
        "same name in other clinics. End with the number, as in <answer>20417</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"people": people, "name": wanted, "clinic": clinic, "answer": answer},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
