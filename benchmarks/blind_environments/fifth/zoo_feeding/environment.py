"""Keepers of a zoo feed animals from a common store."""

import copy
import random

from sparring.environments import Environment, tool
from sparring.types import Task

STORE = {
    "fish": {"kg": 30, "shelf": "cold room"},
    "hay": {"kg": 80, "shelf": "barn"},
    "fruit": {"kg": 25, "shelf": "pantry"},
    "meat": {"kg": 40, "shelf": "cold room"},
}
DIETS = {
    "penguins": ("fish", 6),
    "seals": ("fish", 9),
    "zebras": ("hay", 14),
    "giraffes": ("hay", 18),
    "lemurs": ("fruit", 4),
    "bats": ("fruit", 3),
    "lions": ("meat", 12),
    "wolves": ("meat", 8),
    "otters": ("fish", 5),
    "elephants": ("hay", 30),
}


class Zoo(Environment):
    def reset(self, task):
        self.store = STORE.copy()
        self.fed = {}

    @tool
    def diet(self, animals: str) -> str:
        """Food of a group of animals, and how many kilograms a day.

        Args:
            animals: plural, such as seals
        """
        if animals not in DIETS:
            return f"we keep no {animals}"
        food, kg = DIETS[animals]
        return f"{kg} kg of {food}"

    @tool
    def stock(self, food: str) -> str:
        """How much of a food is left, and where.

        Args:
            food: fish, hay, fruit or meat
        """
        if food not in self.store:
            return f"no {food} here"
        return f"{self.store[food]['kg']} kg, {self.store[food]['shelf']}"

    @tool
    def feed(self, animals: str, food: str, kg: int) -> str:
        """Give food to a group of animals; it is taken from the store.

        Args:
            animals: plural, such as seals
            food: fish, hay, fruit or meat
            kg: whole kilograms, 1 or more
        """
        if animals not in DIETS or food not in self.store or kg < 1:
            return "error: unknown animals or food, or nothing to give"
        if self.store[food]["kg"] < kg:
            return f"error: only {self.store[food]['kg']} kg of {food} left"
        self.store[food]["kg"] -= kg
        self.fed.setdefault(animals, []).append([food, kg])
        return "done"

    def final_state(self):
        return {"fed": self.fed, "left": {food: row["kg"] for food, row in self.store.items()}}


def reward(trajectory):
    """1 when all the groups of the task, and no others, had their food once."""
    want = {animals: [list(DIETS[animals])] for animals in trajectory.task.fields["groups"]}
    return 1.0 if trajectory.final_state["fed"] == want else 0.0


def scorer(trajectory):
    groups, fed = trajectory.task.fields["groups"], trajectory.final_state["fed"]
    return float(sorted(fed) == sorted(groups) and all(fed[a] == [[DIETS[a][0], DIETS[a][1]]] for a in groups))


def _tasks(split, num):
    rng = random.Random("zoo" + split)
    pairs = [(a, b) for a in sorted(DIETS) for b in sorted(DIETS) if a < b]
    random.Random(1).shuffle(pairs)
    pairs = {"train": pairs[:28], "validation": pairs[28:35], "held_out": pairs[35:]}[split]
    out = []
    for index in range(num):
        groups = list(pairs[index % len(pairs)])
        rng.shuffle(groups)
        text = f"Look up what the {groups[0]} and the {groups[1]} get, feed both groups once, then say done."
        out.append(
            Task(id=f"{split}-{index}", messages=({"role": "user", "content": text},), fields={"groups": groups})
        )
    return out


def train_tasks():
    return _tasks("train", 28)


def validation_tasks():
    return _tasks("validation", 7)


def held_out_tasks():
    return _tasks("held_out", 10)
