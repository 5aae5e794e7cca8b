"""Kitchen: how much of an ingredient is needed for a number of guests."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

DISHES = ["soup", "stew", "salad", "risotto", "curry", "pie", "gratin", "ragout", "paella", "tart", "chili", "pilaf"]
STYLES = ["red", "green", "winter", "garden", "fisher's", "farmer's"]
INGREDIENTS = ["onions", "rice", "butter", "carrots", "beans", "cheese", "leeks", "tomatoes"]
INSTRUCTIONS = (
    "You plan for a kitchen. `recipe` shows what a dish takes in grams, and for how many guests. Scale it to the number of guests "
    "that is asked for, and answer with the grams as a whole number: <final_output>450</final_output>"
)


class Kitchen(Environment):
    def reset(self, task: Task) -> None:
        self.dish, self.card = task.fields["dish"], task.fields["recipe"]

    @tool
    def recipe(self, dish: str) -> dict[str, int] | str:
        """What a dish takes in grams, and for how many guests that is.

        Args:
            dish: its full name
        """
        return self.card if dish == self.dish else f"no recipe for {dish}"


def reward(trajectory: Trajectory) -> float:
    """1 for the right number of grams."""
    last = trajectory.messages[-1]
    found = re.fullmatch(r"[^<]*<final_output>\s*(\d+)\s*</final_output>[^<]*", last.get("content") or "")
    if last["role"] != "assistant" or found is None:
        return 0.0
    return float(found[1] == trajectory.task.fields["answer"])


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return [task for task in _tasks() if not _is_held_out(task)]


def held_out_tasks() -> list[Task]:
    return [task for task in _tasks() if _is_held_out(task)]


def _is_held_out(task: Task) -> bool:
    """A fifth of the dishes; a dish is always on the same side, however many tasks there are."""
    return hash(task.fields["dish"]) % 5 == 0


def _tasks() -> list[Task]:
    rng = random.Random("kitchen")
    return [_task(f"{style} {dish}", rng) for style in STYLES for dish in DISHES]


def _task(dish: str, rng: random.Random) -> Task:
    serves = rng.choice((2, 4, 5))
    card = {name: 10 * serves * rng.randint(2, 25) for name in rng.sample(INGREDIENTS, 4)}
    wanted, guests = rng.choice(list(card)), rng.choice([num for num in range(3, 31) if num != serves])
    return Task(
        id=dish.replace(" ", "-"),
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"How many grams of {wanted} does {dish} take for {guests} guests?"},
        ),
        fields={
            "dish": dish,
            "recipe": {"guests": serves, **card},
            "wanted": wanted,
            "guests": guests,
            "answer": str(card[wanted] // serves * guests),
        },
    )
