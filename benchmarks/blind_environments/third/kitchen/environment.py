"""Scaling recipes in a canteen kitchen."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

DISHES = ["goulash", "risotto", "ratatouille", "dal", "chowder", "paella", "moussaka", "borscht"]
STUFF = ["onions", "rice", "carrots", "lentils", "butter", "tomatoes", "stock", "celery", "beans"]


class Book:
    """Grams for one person."""

    def __init__(self, pages: dict[str, dict[str, int]]):
        self.pages = pages

    def scaled(self, dish: str, people: int) -> dict[str, int]:
        return {name: grams * people for name, grams in self.pages[dish].items()}


class Kitchen(Environment):
    def reset(self, task):
        self.book = Book(task.fields["book"])
        self.shelf = task.fields["shelf"]

    @tool
    def dishes(self) -> list[str]:
        """Dishes in the book."""
        return list(self.book.pages)

    @tool
    def ingredients(self, dish: str, *, people: int | None = None) -> dict[str, int]:
        """Grams of each ingredient of a dish.

        Args:
            dish: as in dishes()
            people: for how many; for 4 when left out
        """
        if dish not in self.book.pages:
            raise LookupError(f"no dish {dish}")
        if people is not None and people < 1:
            raise ValueError("people must be 1 or more")
        return self.book.scaled(dish, people or 2)

    @tool
    def in_stock(self, ingredient: str) -> int:
        """Grams of an ingredient on the shelf.

        Args:
            ingredient: its name
        """
        return self.shelf.get(ingredient, 0)


reward, scorer = json_fields(), json_exact()

ASK = """Order {order}: we cook {dish} for {people}. How many grams of {name} does it take, and how many grams must we buy beyond what is on the \
shelf? <final_output>{{"needed": 1, "buy": 0}}</final_output> is the form of the answer."""


def task_of(split, n):
    rng = random.Random(n * 7919 + len(split))
    book = {dish: {name: rng.randrange(15, 160, 5) for name in rng.sample(STUFF, 4)} for dish in rng.sample(DISHES, 3)}
    shelf = {name: rng.randrange(0, 500, 20) for name in STUFF}
    dish = rng.choice(sorted(book))
    name = rng.choice(sorted(book[dish]))
    people = rng.choice([4, 4, 4, 6, 8, 10])
    needed = book[dish][name] * people
    words = {4: "the usual four", 6: "six", 8: "eight", 10: "ten"}
    return Task(
        id=f"kitchen-{split}-{n}",
        messages=(
            {
                "role": "user",
                "content": ASK.format(order=rng.randint(10_000, 99_999), dish=dish, people=words[people], name=name),
            },
        ),
        fields={
            "book": book,
            "shelf": shelf,
            "dish": dish,
            "name": name,
            "people": people,
            "answer": {"needed": needed, "buy": max(0, needed - shelf[name])},
        },
    )


def train_tasks():
    return [task_of("train", n) for n in range(34)]


def held_out_tasks():
    return [task_of("held_out", n) for n in range(14)]
