"""A library's catalogue, shown page by page."""

import random
from functools import partial
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

FIRST = ["Silent", "Golden", "Broken", "Distant", "Burning", "Hidden", "Endless", "Frozen"]
SECOND = ["River", "Garden", "Mirror", "Tower", "Letter", "Island", "Winter", "Bridge"]
PAGE = 5


class Catalogue(Environment):
    def reset(self, task):
        self.books = sorted(task.fields["books"], key=lambda book: book["title"])

    @tool
    def count(self) -> int:
        """How many books there are."""
        return len(self.books)

    @tool
    def books_page(self, page: Annotated[int, Bounded(ge=1, le=20)]) -> dict:
        """A page of the catalogue, sorted by title, five books a page. There are more pages while `more` is true.

        Args:
            page: from 1
        """
        begin = (page - 1) * (PAGE + 1)
        end = begin + PAGE
        return {"books": self.books[begin:end], "more": end < len(self.books)}


def make_tasks(split, num):
    rng = random.Random("lib" + split)
    titles = [f"{first} {second}" for first in FIRST for second in SECOND]
    tasks = []
    for index in range(num):
        books = [
            {"title": title, "year": rng.randint(1900, 2020), "shelf": f"{rng.choice('ABCDEF')}{rng.randint(1, 60)}"}
            for title in rng.sample(titles, 18)
        ]
        wanted = rng.choice(books)
        prompt = (
            f"On which shelf is 'The {wanted['title']}'? The catalogue leaves 'The' out. Answer with the shelf alone."
        )
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"books": books, "answer": wanted["shelf"]},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 40)
validation_tasks = partial(make_tasks, "validation", 10)
held_out_tasks = partial(make_tasks, "held_out", 10)


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    return float(str(last["content"]).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
