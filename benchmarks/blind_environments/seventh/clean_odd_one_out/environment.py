"""Odd one out: five specimens, four of one family. The candidates stand in the question, and names have several spellings."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

NAMES = [
    "Grey-Leaf",
    "Sea Holly",
    "Red-Root",
    "Fire Bell",
    "Moon-Wort",
    "Salt Bush",
    "Gold-Cup",
    "Ice Reed",
    "Sun-Vetch",
    "Bog Star",
]
NAMES += [
    "Ox-Eye",
    "Sky Lily",
    "Ash-Thorn",
    "Wind Rose",
    "Lamb-Ear",
    "Sand Oat",
    "Milk-Pea",
    "Rock Fern",
    "Dew-Grass",
    "Hill Mint",
]
FAMILIES = ["mint", "rose", "daisy", "pea", "grass", "lily", "poppy"]
INSTRUCTIONS = (
    "Four of the plants are of one family, one is not. `family` says of which family a plant is. Answer with the plant that is not of "
    "the others' family; capitals, spaces and hyphens do not matter: <final_output>Sea Holly</final_output>"
)


class Herbarium(Environment):
    def reset(self, task: Task) -> None:
        self.families = task.fields["families"]

    @tool
    def family(self, plant: str) -> str:
        """Of which family a plant is."""
        wanted = _plain(plant)
        return next(
            (family for name, family in self.families.items() if _plain(name) == wanted), "not in the herbarium"
        )


def _plain(name: str) -> str:
    return re.sub(r"[\s-]", "", name).lower()


def reward(trajectory: Trajectory) -> float:
    """1 for the plant, however it is spelled."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    said = re.findall(r"<final_output>([^<]*)</final_output>", text)
    if last["role"] != "assistant" or len(said) != 1 or text.count("<final_output>") != 1:
        return 0.0
    return float(
        re.sub(r"[\s-]", "", said[0]).casefold() == re.sub(r"[\s-]", "", trajectory.task.fields["answer"]).casefold()
    )


def scorer(trajectory: Trajectory) -> float:
    """1 when the last message has one tag, and what is in it is of a family that no other plant has."""
    fields, last = trajectory.task.fields, trajectory.messages[-1]
    text = str(last.get("content"))
    if last["role"] != "assistant" or text.count("<final_output>") != 1 or text.count("</final_output>") != 1:
        return 0.0
    named = text.partition("<final_output>")[2].partition("</final_output>")[0]
    letters = "".join(char for char in named.lower() if not char.isspace() and char != "-")
    all_families = list(fields["families"].values())
    alone = [plant for plant, family in fields["families"].items() if all_families.count(family) == 1]
    return float([letters] == [plant.lower().replace("-", "").replace(" ", "") for plant in alone])


def train_tasks() -> list[Task]:
    return _tasks()[:48]


def held_out_tasks() -> list[Task]:
    return _tasks()[48:]


def _tasks() -> list[Task]:
    rng = random.Random("herbarium")
    tasks: dict[frozenset[str], Task] = {}
    while len(tasks) < 64:
        plants, (family, other) = rng.sample(NAMES, 5), rng.sample(FAMILIES, 2)
        odd = rng.choice(plants)
        tasks.setdefault(
            frozenset(plants),
            Task(
                id=f"odd-{len(tasks)}",
                messages=(
                    {"role": "system", "content": INSTRUCTIONS},
                    {"role": "user", "content": f"Plants: {', '.join(plants)}."},
                ),
                fields={"families": {plant: other if plant == odd else family for plant in plants}, "answer": odd},
            ),
        )
    return list(tasks.values())
