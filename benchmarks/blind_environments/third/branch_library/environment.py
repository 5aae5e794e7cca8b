from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

PAGE_SIZE = 4
FIRST = "amber brass cedar delta ember flint gravel harbor indigo juniper kelp lantern".split()
SECOND = "atlas ballad charter diary essay fable guide hymn index journal ledger manual".split()
AUTHORS = ["Okafor", "Lindqvist", "Marchetti", "Novak", "Osei", "Petrov", "Quint", "Rosario"]

INSTRUCTIONS = """\
You answer questions about the catalogue of a branch library. `titles` lists an author's books a page at a time, in
no particular order; `year` gives the year of one book. Pages count from 1. Answer as
<final_output>{"title": "...", "count": 0}</final_output>"""


class Catalogue(Environment):
    def reset(self, task: Task) -> None:
        self._books: dict[str, dict[str, int]] = task.fields["books"]

    @tool
    def titles(self, author: str, page: int = 1) -> dict[str, list[str]]:
        """One page of the titles of an author, and which page it is of how many.

        Args:
            author: family name
            page: which page, from 1
        """
        everything = list(self._books.get(author, {}))
        if not everything:
            raise ToolFailure(f"no author {author!r}")
        pages = max(1, len(everything) // PAGE_SIZE)
        if not 1 <= page <= pages:
            raise ToolFailure(f"page {page} does not exist, there are pages 1 to {pages}")
        begin = (page - 1) * PAGE_SIZE
        return {"titles": everything[begin : begin + PAGE_SIZE], "page": [f"{page} of {pages}"]}

    @tool
    def year(self, title: str) -> int | None:
        """Year in which a book appeared; null for a title that the library does not have.

        Args:
            title: the whole title
        """
        for books in self._books.values():
            if title in books:
                return books[title]
        return None


reward = json_fields()
scorer = json_exact()


def _task(name: str, rng: random.Random) -> Task:
    books: dict[str, dict[str, int]] = {}
    pool = rng.sample([f"The {one} {two}" for one in FIRST for two in SECOND], 30)
    for author in rng.sample(AUTHORS, 3):
        num = rng.randint(3, 9)
        books[author] = dict(zip([pool.pop() for _ in range(num)], rng.sample(range(1900, 2020), num), strict=True))
    author = rng.choice(list(books))
    years = books[author]
    oldest = min(years, key=years.__getitem__)
    question = f"Reader {rng.randint(1000, 9999)} asks: how many books of {author} does the library have, and which of them is the oldest?"
    return Task(
        id=name,
        messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}),
        fields={"books": books, "author": author, "answer": {"title": oldest, "count": len(years)}},
    )


def train_tasks(num: int = 40) -> list[Task]:
    rng = random.Random("library-train")
    return [_task(f"lib-{index:03}", rng) for index in range(num)]


def held_out_tasks(num: int = 16) -> list[Task]:
    rng = random.Random("library-held-out")
    return [_task(f"lib-h{index:03}", rng) for index in range(num)]
