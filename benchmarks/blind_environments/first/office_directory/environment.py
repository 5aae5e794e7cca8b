"""The directory of an office building: who sits where."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

PEOPLE = [
    "Abel",
    "Bina",
    "Cora",
    "Dirk",
    "Elsa",
    "Finn",
    "Gabi",
    "Hugo",
    "Ines",
    "Jule",
    "Kaya",
    "Lars",
    "Mona",
    "Nils",
    "Olga",
    "Paul",
    "Rosa",
    "Sven",
    "Tara",
    "Udo",
]


class Directory(Environment):
    def reset(self, task):
        self.floors = task.fields["floors"]
        self.people = self.floors["1"]

    @tool
    def floors_of_building(self) -> list:
        """The floors of the building."""
        return sorted(self.floors)

    @tool
    def list_floor(self, floor: str) -> list:
        """Names of those who sit on a floor.

        Args:
            floor: its number
        """
        if floor not in self.floors:
            return []
        self.people = self.floors[floor]
        return sorted(self.people)

    @tool
    def find_desk(self, name: str) -> str:
        """The desk of a person, wherever in the building.

        Args:
            name: the first name
        """
        return self.people.get(name, "unknown person")


def make_tasks(split, num):
    rng = random.Random(f"{split}/9")
    tasks = []
    for index in range(num):
        people = rng.sample(PEOPLE, 12)
        floors = {
            str(floor + 1): {name: f"{floor + 1}-{rng.randint(10, 99)}" for name in people[floor * 4 : floor * 4 + 4]}
            for floor in range(3)
        }
        floor = rng.choice("123")
        name = rng.choice(sorted(floors[floor]))
        prompt = f"At which desk does {name} sit? Answer with the desk alone."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"floors": floors, "answer": floors[floor][name]},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 32)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and str(last["content"]).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
