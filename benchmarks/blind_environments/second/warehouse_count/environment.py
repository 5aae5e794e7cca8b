"""Stock counting: which articles are below their minimum? The stock list comes in pages."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

PAGE_SIZE = 4
SYSTEM = """You keep the stock of a warehouse. An article is short when it has fewer pieces than its minimum.
Read the whole stock list of the hall that you are asked about, all of its pages. Answer with the number of short articles and the
code of the one that lacks most pieces:
<final_output>{"short":0,"worst":""}</final_output>"""


@dataclass(frozen=True)
class Article:
    code: str
    pieces: int
    minimum: int

    @property
    def lacking(self) -> int:
        return max(0, self.minimum - self.pieces)


class Warehouse(Environment):
    def reset(self, task: Task) -> None:
        self.hall: str = task.fields["hall"]
        self.articles = [Article(**row) for row in task.fields["articles"]]

    @tool
    def stock(self, hall: str, page: Annotated[int, Bounded(ge=1)] = 1) -> dict:
        """One page of the stock list of a hall.

        Args:
            hall: name of the hall
            page: from 1; the result names the number of pages
        """
        if hall != self.hall:
            raise ToolFailure(f"there is no hall {hall!r}")
        pages = max(1, len(self.articles) // PAGE_SIZE)
        if page > pages:
            raise ToolFailure(f"hall {hall} has {pages} pages")
        begin = (page - 1) * PAGE_SIZE
        return {
            "page": page,
            "pages": pages,
            "articles": [asdict(article) for article in self.articles[begin : begin + PAGE_SIZE]],
        }

    @tool
    def hall_info(self, hall: str) -> dict:
        """How many articles are kept in a hall."""
        if hall != self.hall:
            raise ToolFailure(f"there is no hall {hall!r}")
        return {"hall": hall, "articles": len(self.articles)}


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 16) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"{split}/{index}")
    letters = "ABCDEFGH" if split == "train" else "RSTUVW"
    hall = f"{rng.choice(letters)}{index + 10}"
    codes = rng.sample(range(1000, 9999), rng.randint(8, 15))
    shortfalls = rng.sample(range(1, 60), len(codes))
    articles = []
    for code, shortfall in zip(codes, shortfalls, strict=True):
        minimum = rng.randint(60, 120)
        is_short = rng.random() < 0.5
        pieces = minimum - shortfall if is_short else minimum + rng.randint(0, 40)
        articles.append(Article(f"{hall}-{code}", pieces, minimum))
    if not any(article.lacking for article in articles):
        articles[-1] = Article(articles[-1].code, 3, 60)
    worst = max(articles, key=lambda article: article.lacking)
    return Task(
        id=f"count-{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Which articles are short in hall {hall}?"},
        ),
        fields={
            "hall": hall,
            "articles": [asdict(article) for article in articles],
            "answer": {"short": sum(article.lacking > 0 for article in articles), "worst": worst.code},
        },
        seed=index,
    )
