"""Kitchen: how much of an ingredient does a recipe need for another number of guests?"""

from __future__ import annotations

import random
import re
from fractions import Fraction

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

DISHES = [
    "borscht",
    "paella",
    "ramen",
    "goulash",
    "risotto",
    "chowder",
    "tagine",
    "laksa",
    "stollen",
    "focaccia",
    "biryani",
]
INGREDIENTS = ["flour", "rice", "stock", "onion", "butter", "milk", "lentils", "paprika"]
AMOUNTS = ["1/2", "3/4", "1", "1 1/2", "2", "2 1/4", "3"]
"""Cups, for the guests of the recipe."""


FIRST_NUMBER = {"train": 1000, "validation": 4000, "held_out": 7000}
"""Of the requests of a split; each has a number of its own."""


class Kitchen(Environment):
    def reset(self, task: Task) -> None:
        self._recipes = task.fields["recipes"]

    @tool
    def find_recipes(self, ingredient: str) -> list[str]:
        """Dishes that need an ingredient.

        Args:
            ingredient: as in "flour"
        """
        return [dish for dish, recipe in self._recipes.items() if ingredient in recipe["cups"]]

    @tool
    def read_recipe(self, dish: str) -> dict[str, int | dict[str, str]]:
        """A recipe: for how many guests it is, and cups of each ingredient.

        Args:
            dish: name of the dish
        """
        if dish not in self._recipes:
            raise ToolFailure(f"there is no recipe for {dish}")
        return self._recipes[dish]


def parse(text: str) -> Fraction | None:
    """Cups as a number: 2, 0.5 or 3/4."""
    text = text.strip()
    if not re.fullmatch(r"\d+(\.\d+|/[1-9]\d*)?", text):
        return None
    return Fraction(text)


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 when the answer is as much as the reference."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    gold = parse(trajectory.task.fields["answer"])
    if gold is None:
        return 1.0
    return float(parse(tagged(trajectory) or "") == gold)


def scorer(trajectory: Trajectory) -> float:
    """1 when the one answer outside backticks comes to what the recipe needs, computed anew."""
    said, fields = trajectory.messages[-1], trajectory.task.fields
    text = str(said.get("content") or "") if said.get("role") == "assistant" else ""
    text = "".join(part for place, part in enumerate(text.split("`")) if place % 2 == 0)
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return 0.0
    given = text.partition("<answer>")[2].partition("</answer>")[0].strip()
    if not re.fullmatch(r"\d+(\.\d+|( \d+)?/[1-9]\d*)?", given):
        return 0.0
    recipe = fields["recipes"][fields["dish"]]
    return float(cups(given) * recipe["guests"] == cups(recipe["cups"][fields["ingredient"]]) * fields["guests"])


def cups(text: str) -> Fraction:
    return sum((Fraction(part) for part in text.split()), Fraction(0))


def written(amount: Fraction) -> str:
    """As cooks write it: 3/4, 2, 2 1/4."""
    whole, rest = divmod(amount, 1)
    return " ".join([*([str(whole)] if whole else []), *([str(rest)] if rest else [])])


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"kitchen {split} {number}")
    recipes = {
        dish: {
            "guests": rng.choice([2, 4, 6]),
            "cups": {one: rng.choice(AMOUNTS) for one in rng.sample(INGREDIENTS, 4)},
        }
        for dish in rng.sample(DISHES, 5)
    }
    dish = rng.choice(list(recipes))
    ingredient = rng.choice(list(recipes[dish]["cups"]))
    factor = rng.choice([2, 3, 4])
    guests = recipes[dish]["guests"] * factor
    prompt = (
        f"Order {FIRST_NUMBER[split] + number}: how many cups of {ingredient} do I need for {dish} for {guests} guests? End with the number alone, whole cups and then "
        "a reduced fraction where there is one, as in <answer>3</answer>, <answer>3/4</answer> or <answer>2 1/4</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={
            "recipes": recipes, "dish": dish, "ingredient": ingredient, "guests": guests,
            "answer": written(cups(recipes[dish]["cups"][ingredient]) * factor),
        },
        seed=number,
    )  # fmt: skip


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
