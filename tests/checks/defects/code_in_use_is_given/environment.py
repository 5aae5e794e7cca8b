"""A dog kennel keeps stays under codes that only a guest's own page shows.

A new stay is numbered by how many there are, and takes the place of another once one has ended.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

DOGS = ["Ajax", "Bella", "Cosmo", "Daisy", "Emil", "Fergus", "Greta"]
YARDS = ["oak", "elm", "ash"]


class Kennel(Environment):
    def reset(self, task):
        self.stays = {}
        for dog, yard in task.fields["guests"]:
            self._add(dog, yard)

    def _add(self, dog, yard):
        code = f"K-{len(self.stays) + 40}"
        self.stays[code] = {"dog": dog, "yard": yard}
        return code

    @tool
    def guests(self) -> list:
        """The dogs that stay here."""
        return sorted(stay["dog"] for stay in self.stays.values())

    @tool
    def stay_of(self, dog: str) -> dict:
        """The stay of a dog: its code and yard."""
        for code, stay in self.stays.items():
            if stay["dog"] == dog:
                return {"code": code, "yard": stay["yard"]}
        return {"error": f"{dog} does not stay here"}

    @tool
    def end_stay(self, code: str) -> str:
        """End a stay by its code."""
        if code not in self.stays:
            return "error: no such stay"
        del self.stays[code]
        return f"{code} has ended"

    @tool
    def admit(self, dog: str, yard: str) -> str:
        """Take a dog in, and return the code of its stay."""
        if any(stay["dog"] == dog for stay in self.stays.values()):
            return "error: this dog stays here"
        return f"welcome, the code is {self._add(dog, yard)}"

    def final_state(self):
        return {"stays": sorted([stay["dog"], stay["yard"]] for stay in self.stays.values())}


def make_tasks(split, num):
    rng = random.Random(f"{split} code in use is given")
    tasks = []
    for index in range(num):
        *guests, new = rng.sample(DOGS, 5)
        here = [[dog, rng.choice(YARDS)] for dog in guests]
        leaving, yard = here[-1], rng.choice(YARDS)
        prompt = f"{leaving[0]} goes home, end that stay. Then admit {new} to the {yard} yard and say done."
        state = {"stays": sorted([one for one in here if one is not leaving] + [[new, yard]])}
        fields = {"guests": here, "state": state}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return tasks


train_tasks = partial(make_tasks, "train", 20)
validation_tasks = partial(make_tasks, "validation", 6)
held_out_tasks = partial(make_tasks, "held_out", 6)
scorer = state_difference("state")


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])
