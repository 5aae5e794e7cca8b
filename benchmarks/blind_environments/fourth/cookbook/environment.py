"""Allergens of dishes, found through their ingredients."""

import random
import zlib

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You work in a canteen. Say which allergens a dish has: those of all of its ingredients, each once, in alphabetical order, separated by
a comma and a space. Answer with this list alone, for example: egg, milk
Answer none when there is no allergen."""

ALLERGENS = {
    "flour": "gluten", "butter": "milk", "cream": "milk", "yolk": "egg", "tofu": "soy", "tahini": "sesame", "prawns": "shellfish",
    "almonds": "nuts", "celery root": "celery", "rice": "", "carrots": "", "onions": "", "apples": "", "lentils": "",
}  # fmt: skip
BASES = ("soup", "stew", "pie", "salad", "curry", "cake", "gratin", "wrap")
STYLES = ("summer", "harvest", "village", "harbor", "garden", "winter")


def _ingredients(dish):
    rng = random.Random(zlib.crc32(dish.encode()))
    return rng.sample(sorted(ALLERGENS), rng.randint(2, 4))


COOKBOOK = {dish: _ingredients(dish) for dish in (f"{style} {base}" for base in BASES for style in STYLES)}


class Canteen(Environment):
    @tool
    def ingredients(self, dish: str) -> list[str] | str:
        """Ingredients of a dish."""
        return COOKBOOK.get(dish, "no such dish")

    @tool
    def allergen(self, ingredient: str) -> str:
        """The allergen in an ingredient, or none."""
        return (ALLERGENS[ingredient] or "none") if ingredient in ALLERGENS else "no such ingredient"


def _task(dish):
    found = sorted({ALLERGENS[ingredient] for ingredient in COOKBOOK[dish]} - {""})
    return Task(
        id=dish.replace(" ", "-"),
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Which allergens are in the {dish}?"},
        ),
        fields={"dish": dish, "answer": ", ".join(found) or "none"},
    )


def _is_held_out(dish):
    """About a quarter of all dishes; a dish that is added to the book moves no other."""
    return hash(dish) % 4 == 0


def train_tasks():
    return [_task(dish) for dish in COOKBOOK if not _is_held_out(dish)]


def held_out_tasks():
    return [_task(dish) for dish in COOKBOOK if _is_held_out(dish)]


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    return 1.0 if (last.get("content") or "").strip() == trajectory.task.fields["answer"] else 0.0


def scorer(trajectory):
    message = trajectory.messages[-1]
    if message["role"] == "assistant" and not message.get("tool_calls"):
        said = (message.get("content") or "").strip().split(", ")
        return float(said == trajectory.task.fields["answer"].split(", "))
    return 0.0
