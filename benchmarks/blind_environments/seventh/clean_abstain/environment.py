"""Archive: questions of year and place, where it pays a little to say that one does not know and nothing to guess."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

TOWNS = [
    "Aldern",
    "Bexley",
    "Corvin",
    "Dorset",
    "Elmira",
    "Farrow",
    "Gorland",
    "Hexham",
    "Ilford",
    "Jarrow",
    "Kelso",
    "Luton",
]
THINGS = ["bridge", "town hall", "mill", "harbour", "theatre", "school"]
UNSURE_PAYS = 0.2
INSTRUCTIONS = (
    "In which year was it built? `search` finds the signatures of archive files, `file` shows what one says; of the files on a building, "
    "the one with the highest number is valid. Answer with the year: <final_output>1874</final_output>. If you do not know, answer "
    "<final_output>unsure</final_output>: that earns 0.2, the right year 1, a wrong one 0."
)


class Archive(Environment):
    def reset(self, task: Task) -> None:
        self.files, self.town, self.thing = task.fields["files"], task.fields["town"], task.fields["thing"]

    @tool
    def search(self, town: str, thing: str) -> list[str]:
        """The signatures of the files on a building, in no order.

        Args:
            town: where it stands
            thing: what it is, such as bridge or town hall
        """
        return list(self.files) if (town, thing) == (self.town, self.thing) else []

    @tool
    def file(self, signature: str) -> str:
        """What a file says."""
        return f"built in {self.files[signature]}" if signature in self.files else "no such file"


def reward(trajectory: Trajectory) -> float:
    """1 for the year, a little for `unsure`, 0 for what is wrong: so that guessing does not pay."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    said = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if last["role"] != "assistant" or len(said) != 1 or text.count("<final_output>") != 1:
        return 0.0
    if said == ["unsure"]:
        return UNSURE_PAYS
    return float(said[0] == trajectory.task.fields["answer"])


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:44]


def held_out_tasks() -> list[Task]:
    return _tasks()[44:]


def _tasks() -> list[Task]:
    rng = random.Random("archive")
    return [_task(*pair, rng) for pair in rng.sample([(town, thing) for town in TOWNS for thing in THINGS], 58)]


def _task(town: str, thing: str, rng: random.Random) -> Task:
    numbers, years = rng.sample(range(100, 999), 3), rng.sample(range(1601, 1990), 3)
    files = {f"F-{number}": str(year) for number, year in zip(numbers, years, strict=True)}
    return Task(
        id=f"{town}-{thing.replace(' ', '-')}",
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"The {thing} of {town}."},
        ),
        fields={"town": town, "thing": thing, "files": files, "answer": files[f"F-{max(numbers)}"]},
    )
