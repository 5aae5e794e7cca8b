"""A seed bank: are stored seeds kept, tested again, or grown anew? The inventory is inventory.csv."""

import csv
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

CHOICES = ("keep", "test", "grow")
PROCEDURE = """\
What is done with an accession of seeds?
accession gives species, year of the last test, and per cent that germinated then (null when that is unknown).
species gives the years between two tests, and the lowest germination in per cent.
- Germination unknown: test.
- Below the lowest: grow.
- The last test, counted to the year of the request, is longer ago than the years between two tests: test.
- Otherwise: keep.
End with one word in this tag and nothing else: <choice></choice>"""

SPECIES = {"barley": (10, 85), "poppy": (5, 70), "clover": (8, 80), "flax": (6, 75), "vetch": (12, 65)}


@functools.cache
def inventory() -> Mapping[str, Mapping[str, str]]:
    """The file by accession; it never changes, so it is read once."""
    with open(Path(__file__).with_name("inventory.csv"), encoding="utf-8", newline="") as file:
        return {row["accession"]: row for row in csv.DictReader(file)}


class SeedBank(Environment):
    def reset(self, task: Task) -> None:
        self.mine = task.fields["accession"]

    @tool
    def accession(self, number: str) -> dict[str, str | int | None]:
        """An accession of the inventory."""
        if number not in inventory():
            return {"error": f"no accession {number}"}
        row = inventory()[number]
        germinated = int(row["germinated"]) if row["germinated"] else None
        return {"species": row["species"], "tested": int(row["tested"]), "germinated": germinated}

    @tool
    def species(self, name: str) -> str:
        """Rules of a species."""
        if name not in SPECIES:
            return f"{name} is not stored here"
        return "test every {} years, germination at least {} per cent".format(*SPECIES[name])

    def demonstrate(self, task: Task) -> Sequence[Message]:
        species = inventory()[task.fields["accession"]]["species"]
        calls = [tool_call("accession", number=task.fields["accession"]), tool_call("species", name=species)]
        return [*calls, answer(f"<choice>{task.fields['choice']}</choice>")]


def chosen(row: Mapping[str, str], year: int) -> str:
    years, lowest = SPECIES[row["species"]]
    if not row["germinated"]:
        return "test"
    if int(row["germinated"]) < lowest:
        return "grow"
    return "test" if year - int(row["tested"]) > years else "keep"


def reward(trajectory: Trajectory) -> Reward:
    end = trajectory.messages[-1]
    found = re.fullmatch("<choice>([a-z]+)</choice>", str(end.get("content") or "").strip())
    word = found[1] if found is not None and end["role"] == "assistant" else None
    form, right = 0.1 * (word in CHOICES), 0.9 * (word == trajectory.task.fields["choice"])
    return Reward(total=form + right, components={"form": form, "right": right})


def scorer(trajectory: Trajectory) -> float:
    last = trajectory.messages[-1]
    wanted = f"<choice>{trajectory.task.fields['choice']}</choice>"
    return float(last["role"] == "assistant" and str(last.get("content")).strip() == wanted)


def train_tasks() -> list[Task]:
    return _tasks("train")


def validation_tasks() -> list[Task]:
    return _tasks("validation")


def held_out_tasks() -> list[Task]:
    return _tasks("held_out")


def _tasks(split: str) -> list[Task]:
    return [_task(row) for row in inventory().values() if row["split"] == split]


def _task(row: Mapping[str, str]) -> Task:
    year = int(row["requested"])
    text = (
        f"In {year}, {row['who']} asks what is to be done with accession {row['accession']} from shelf {row['shelf']}."
    )
    return Task(
        id=row["accession"],
        messages=({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text}),
        fields={"accession": row["accession"], "choice": chosen(row, year)},
    )
