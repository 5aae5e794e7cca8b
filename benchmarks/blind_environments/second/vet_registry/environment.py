"""The registry of a veterinary practice: owners, their animals and when these were vaccinated."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Mapping

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Json, Task

SYSTEM = """You answer the telephone of a veterinary practice. Find the owner in the registry and then the animal. Answer with the animal's
chip number and the year of its last vaccination:
<final_output>{"chip":"","year":0}</final_output>"""
OWNERS = {
    "train": [
        "Núñez", "Becker", "Søgaard", "Martin", "Dvořák", "Keller", "Çelik", "Rivera", "Müller", "Walsh", "García", "Olufemi",
        "Łukasik", "Hughes", "Gonçalves", "Tran",
    ],
    "held_out": ["Björk", "Fischer", "Peña", "Hansen", "Šimić", "Adler", "Lévy", "Okoye"],
}  # fmt: skip
ANIMALS = ["Rex", "Minka", "Pablo", "Luna", "Otto", "Flocke", "Tiger", "Nala"]


def registry_key(name: str) -> str:
    """How the registry files a name: letters without accents, in lower case."""
    plain = unicodedata.normalize("NFKD", name.strip().lower())
    return "".join(letter for letter in plain if not unicodedata.combining(letter))


class VetRegistry(Environment):
    def reset(self, task: Task) -> None:
        self._owners: dict[str, Mapping[str, Json]] = {
            registry_key(owner["name"]): owner for owner in task.fields["owners"]
        }
        self._animals: Mapping[str, list[Mapping[str, Json]]] = task.fields["animals"]

    @tool
    def find_owner(self, name: str) -> dict[str, str]:
        """The number of an owner.

        Args:
            name: family name as the owner writes it, accents included
        """
        owner = self._owners.get(name.strip().lower())
        if owner is None:
            raise ToolFailure(f"no owner is called {name}")
        return {"name": owner["name"], "number": owner["number"]}

    @tool
    def animals(self, owner: str) -> list[dict[str, Json]]:
        """The animals of an owner: name, chip and year of the last vaccination.

        Args:
            owner: number of the owner
        """
        if owner not in self._animals:
            raise ToolFailure(f"there is no owner number {owner}")
        return [dict(animal) for animal in self._animals[owner]]


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 16) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"registry {split} {index}")
    names = rng.sample(OWNERS[split], 5)
    numbers = rng.sample(range(100, 600) if split == "train" else range(600, 1000), 5)
    owners = [{"name": name, "number": f"O{number}"} for name, number in zip(names, numbers, strict=True)]
    chips = iter(rng.sample(range(100_000, 999_999), 20))
    animals = {
        owner["number"]: [
            {"name": animal, "chip": str(next(chips)), "year": rng.randint(2019, 2025)}
            for animal in rng.sample(ANIMALS, rng.randint(1, 3))
        ]
        for owner in owners
    }
    owner = rng.choice(owners)
    animal = rng.choice(animals[owner["number"]])
    call = index + (100 if split == "train" else 500)
    user = (
        f"Call {call}: this is {owner['name']}. When was {animal['name']} vaccinated last, and what is the chip number?"
    )
    return Task(
        id=f"registry-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
        fields={
            "owners": owners,
            "animals": animals,
            "asked": [owner["name"], animal["name"]],
            "answer": {"chip": animal["chip"], "year": animal["year"]},
        },
        seed=index,
    )
