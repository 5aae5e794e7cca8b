"""A cook keeps recipes.

The index is made at reset, and what is added later is not in it.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task


class Recipes(Environment):
    def reset(self, task):
        self.recipes = dict(task.fields["recipes"])
        self.index = {name: name for name in self.recipes}

    @tool
    def names(self) -> list:
        """Names of all recipes."""
        return sorted(self.recipes)

    @tool
    def read(self, name: str) -> str:
        """Text of a recipe."""
        return self.recipes[self.index[name]] if name in self.index else "no such recipe"

    @tool
    def add(self, name: str, text: str) -> str:
        """Add a recipe."""
        if name in self.recipes:
            return "there is one of that name"
        self.recipes[name] = text
        return "added"

    def final_state(self):
        return self.recipes


def make_tasks(split, num):
    rng = random.Random(f"{split} e index")
    tasks = []
    for index in range(num):
        fields = {
            "recipes": {
                n: f"bake {rng.randint(10, 60)} minutes" for n in rng.sample(["pie", "bread", "tart", "buns"], 3)
            }
        }
        name, text = f"cake {rng.randint(1, 99)}", f"stir {rng.randint(2, 20)} minutes"
        prompt = f"Add the recipe '{name}': {text}. Then say done."
        state = {**fields["recipes"], name: text}
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={**fields, "state": state},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 20)
validation_tasks = partial(make_tasks, "validation", 6)
held_out_tasks = partial(make_tasks, "held_out", 6)
scorer = state_difference("state")


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])
