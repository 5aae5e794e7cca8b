"""Nature quiz: multiple choice about animals and plants, with a field guide at hand."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

HABITATS = [
    "Dry heath",
    "Alpine scree",
    "Deep forest",
    "Coastal dunes",
    "Bog",
    "Chalk meadow",
    "Brackish marsh",
    "River bank",
]
FOODS = ["Aphids", "Berries", "Carrion", "Dew and moss", "Beetles", "Algae", "Clover", "Dragonflies"]
GENERA = ["Avola", "Brunea", "Corvina", "Delphor", "Eltana", "Fulmira", "Galenta", "Hortula", "Ibexa", "Junella"]
EPITHETS = ["alba", "nigra", "minor", "major", "montana", "palustris", "vulgaris", "rara"]
LETTERS = "ABCD"
CHOICE = r"\(?([A-D])(?![A-Za-z])(?!\W+(?:or\W+|and\W+)?[A-D](?![A-Za-z]))"


class FieldGuide(Environment):
    def reset(self, task: Task) -> None:
        self._guide: dict[str, dict[str, str]] = task.fields["guide"]

    @tool
    def search_guide(self, genus: str) -> list[str]:
        """Species of a genus.

        Args:
            genus: first word of the name
        """
        return [name for name in self._guide if name.split()[0].lower() == genus.lower()]

    @tool
    def read_entry(self, species: str) -> dict[str, str]:
        """What the guide says about a species: habitat and food.

        Args:
            species: full name, as in "Avola alba"
        """
        if species not in self._guide:
            raise ToolFailure(f"the guide has no {species}")
        return self._guide[species]


def reward(trajectory: Trajectory) -> float:
    """1 when the reply names the right letter."""
    last, target = trajectory.messages[-1], trajectory.task.fields["answer"]
    if last["role"] != "assistant":
        return 0.0
    reply = (last.get("content") or "").strip()
    return 1.0 if target in reply else 0.0


def scorer(trajectory: Trajectory) -> float:
    """1 when the reply begins with the right letter, and with no other one next to it."""
    said = trajectory.messages[-1]
    match = re.match(CHOICE, str(said.get("content") or "").lstrip()) if said.get("role") == "assistant" else None
    return float(match is not None and match[1] == trajectory.task.fields["answer"])


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"guide/{split}/{number}")
    names = rng.sample([f"{genus} {epithet}" for genus in GENERA for epithet in EPITHETS], 12)
    guide = {name: {"habitat": rng.choice(HABITATS), "food": rng.choice(FOODS)} for name in names}
    species, topic = rng.choice(names), rng.choice(["habitat", "food"])
    right = guide[species][topic]
    options = rng.sample([one for one in (HABITATS if topic == "habitat" else FOODS) if one != right], 3) + [right]
    rng.shuffle(options)
    question = {"habitat": f"Where does {species} live?", "food": f"What does {species} feed on?"}[topic]
    prompt = "\n".join(
        [
            f"{question} Look it up in the field guide.",
            *(f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=True)),
            "Begin your reply with the letter; you may add the option and a reason.",
        ]
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={"guide": guide, "species": species, "options": options, "answer": LETTERS[options.index(right)]},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
