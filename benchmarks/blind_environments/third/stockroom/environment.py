"""Receiving deliveries in a stock room. Counting takes long, so counts are kept once they are known."""

from __future__ import annotations

import random
import re

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import numeric_match
from sparring.types import Task

ARTICLES = ["bolt", "nut", "washer", "hinge", "bracket", "dowel", "rivet", "clamp"]


class Stockroom(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        database = self.state.database
        database.executescript(
            "CREATE TABLE piece (article, place); CREATE TABLE delivery (id, article, num, received DEFAULT 0);"
        )
        for article, num in task.fields["stock"].items():
            database.executemany("INSERT INTO piece VALUES (?, 'shelf')", [(article,)] * num)
        database.executemany("INSERT INTO delivery (id, article, num) VALUES (?, ?, ?)", task.fields["deliveries"])
        self._counts: dict[str, int] = {}

    @tool
    def count(self, article: str) -> int:
        """How many pieces of an article are in stock now.

        Args:
            article: for example bolt
        """
        if article not in self._counts:
            rows = self.state.database.execute("SELECT count(*) FROM piece WHERE article = ?", (article,))
            self._counts[article] = rows.fetchone()[0]
        return self._counts[article]

    @tool
    def receive(self, delivery: str) -> str:
        """Unpack a delivery and put its pieces on the shelf.

        Args:
            delivery: its number
        """
        database = self.state.database
        row = database.execute(
            "SELECT article, num FROM delivery WHERE id = ? AND NOT received", (delivery,)
        ).fetchone()
        if row is None:
            raise ToolFailure(f"no delivery {delivery} is waiting")
        article, num = row
        database.execute("UPDATE delivery SET received = 1 WHERE id = ?", (delivery,))
        database.executemany("INSERT INTO piece VALUES (?, 'shelf')", [(article,)] * num)
        return f"{delivery} is unpacked"


def reward(trajectory) -> float:
    last = trajectory.messages[-1]
    match = re.search(r"<final_output>\s*(\d+)\s*</final_output>", last.get("content") or "")
    return float(
        last["role"] == "assistant" and match is not None and int(match[1]) == trajectory.task.fields["answer"]
    )


scorer = numeric_match(tolerance=0)


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"stockroom {split} {index}")
    stock = {article: rng.randint(3, 60) for article in rng.sample(ARTICLES, 5)}
    one, two, *_ = stock
    deliveries = [
        [f"D{number}", article, rng.randint(2, 40)]
        for number, article in zip(rng.sample(range(100, 1000), 3), (one, two, one), strict=True)
    ]
    mine = deliveries[0]
    end = "<final_output>7</final_output> with the number alone."
    if index % 3:
        text = f"Count the {one}s. If there are fewer than 45, receive delivery {mine[0]}. Then count again and answer how many there are: {end}"
        answer = stock[one] + (mine[2] if stock[one] < 45 else 0)
    else:
        text = f"Receive delivery {mine[0]} and say how many {one}s there are after that: {end}"
        answer = stock[one] + mine[2]
    return Task(
        id=f"{split}-{index}",
        seed=index,
        messages=({"role": "user", "content": text},),
        fields={
            "stock": stock,
            "deliveries": deliveries,
            "article": one,
            "delivery": mine[0],
            "is_counted": bool(index % 3),
            "answer": answer,
        },
    )


def train_tasks() -> list[Task]:
    return [_task("train", index) for index in range(36)]


def held_out_tasks() -> list[Task]:
    return [_task("held", index) for index in range(12)]
