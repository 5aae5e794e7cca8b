"""A school kitchen counts the meals of each class.

The overview is made once and never again.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

CLASSES = ["1a", "1b", "2a", "2b", "3c", "4a"]


class Kitchen(Environment):
    def reset(self, task):
        self.meals = dict(task.fields["meals"])
        self.page = None

    @tool
    def overview(self) -> dict:
        """Meals of all classes, and how many there are in all."""
        if self.page is None:
            self.page = {"classes": dict(self.meals), "all": sum(self.meals.values())}
        return self.page

    @tool
    def order_meals(self, school_class: str, meals: int) -> str:
        """Set how many meals a class gets."""
        if school_class not in self.meals:
            return "no such class"
        self.meals[school_class] = meals
        return "ordered"

    def final_state(self):
        return self.meals


def make_tasks(split, num):
    rng = random.Random(f"{split} overview is remembered")
    tasks = []
    for index in range(num):
        fields = {"meals": {name: rng.randint(10, 30) for name in sorted(rng.sample(CLASSES, 4))}}
        name, more = rng.choice(sorted(fields["meals"])), rng.randint(1, 6)
        prompt = f"Class {name} needs {more} meals more than so far. Order them, then say done."
        state = {**fields["meals"], name: fields["meals"][name] + more}
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
