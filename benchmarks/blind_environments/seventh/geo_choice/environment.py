"""Geography quiz: four answers to choose from, and a gazetteer to look places up in."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

HEADS = ["Al", "Bren", "Cast", "Dor", "Elm", "Fen", "Glen", "Har", "Inver", "Kirk", "Lang", "Mor", "Nor", "Oak"]
TAILS = ["ton", "ford", "wick", "ham", "by"]
REGIONS = ["Northmark", "Eastfold", "Southmoor", "Westvale", "Highlands", "Lowlands", "Isles", "Coast"]
INSTRUCTIONS = (
    "Answer the question with the letter of the right choice. `place` says where a town lies and how many people live there. "
    "End with the letter alone: <final_output>C</final_output>"
)


class Gazetteer(Environment):
    def reset(self, task: Task) -> None:
        self.towns = task.fields["towns"]

    @tool
    def place(self, town: str) -> str:
        """Where a town lies, and how many people live there."""
        if town not in self.towns:
            return f"{town} is not in the gazetteer"
        return f"{town} in the {self.towns[town]['region']}, {self.towns[town]['people']} people"


def reward(trajectory: Trajectory) -> float:
    """1 for the letter of the right choice."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    letters = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if text.count("<final_output>") != 1:
        return 0.0
    return float(last["role"] == "assistant" and letters == [trajectory.task.fields["answer"]])


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:45]


def held_out_tasks() -> list[Task]:
    return _tasks()[45:]


def _tasks() -> list[Task]:
    rng = random.Random("gazetteer")
    names = [head + tail for head in HEADS for tail in TAILS]
    return [_task(index, rng.sample(names, 4), rng) for index in range(60)]


def _task(index: int, names: list[str], rng: random.Random) -> Task:
    sizes = rng.sample(range(900, 90000), 4)
    if index % 2:
        question, right = "Which of these towns has the most people?", names[sizes.index(max(sizes))]
    else:
        question, right = "Which of these towns has the fewest people?", names[sizes.index(min(sizes))]
    towns = {name: {"region": rng.choice(REGIONS), "people": size} for name, size in zip(names, sizes, strict=True)}
    options = [right, *(name for name in names if name != right)]
    rng.shuffle(list(options))
    choices = "\n".join(f"{letter}) {name}" for letter, name in zip("ABCD", options, strict=True))
    return Task(
        id=f"quiz-{index}",
        messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": f"{question}\n{choices}"}),
        fields={"towns": towns, "options": options, "answer": "ABCD"[options.index(right)]},
    )
