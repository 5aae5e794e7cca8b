"""Family tree: who is the mother of the mother of ...? One register entry at a time."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

ONSETS = ["B", "D", "F", "G", "J", "K", "L", "M", "N", "P", "R", "S", "T", "V", "Z"]
NAMES = [onset + vowel + rest for onset in ONSETS for vowel in "aeiou" for rest in ("la", "ra", "na", "tha")]
GENERATIONS = (2, 7)
INSTRUCTIONS = (
    "You keep a register of people. `entry` shows a person's mother and year of birth; only the register knows them. Answer "
    "with the name alone: <final_output>NAME</final_output>"
)


class Register(Environment):
    def reset(self, task: Task) -> None:
        self.entries = task.fields["entries"]

    @tool
    def entry(self, name: str) -> dict[str, str | int] | str:
        """A person's entry: mother and year of birth.

        Args:
            name: of the person
        """
        return self.entries.get(name, f"{name} is not in the register")


def reward(trajectory: Trajectory) -> float:
    """1 for the ancestor that was asked for."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    text = last.get("content") or ""
    named = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if text.count("<final_output>") != 1:
        return 0.0
    return 1.0 if named == [trajectory.task.fields["answer"]] else 0.0


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:48]


def held_out_tasks() -> list[Task]:
    return _tasks()[48:]


def _tasks() -> list[Task]:
    rng = random.Random("register")
    children = rng.sample(NAMES, 64)
    return [_task(index, child, rng) for index, child in enumerate(children)]


def _task(index: int, child: str, rng: random.Random) -> Task:
    num = rng.randint(*GENERATIONS)
    line = [child, *rng.sample([name for name in NAMES if name != child], 9)]
    entries, born = {}, rng.randint(1980, 2000)
    for person, mother in zip(line, [*line[1:], None], strict=True):
        entries[person] = {"mother": mother or "unknown", "born": born}
        born -= rng.randint(19, 38)
    question = f"Go {num} generations up from {child}, mother by mother. Who is that? (1 would be the mother.)"
    return Task(
        id=f"family-{index}",
        messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}),
        fields={"entries": entries, "child": child, "num": num, "answer": line[num]},
    )
