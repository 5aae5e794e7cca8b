"""Questions about a small shop's database, answered with SQL."""

import random
import sqlite3
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

CITIES = ["Bern", "Graz", "Lyon", "Riga", "Turin"]
ITEMS = ["tent", "stove", "rope", "boots", "lantern"]


class Reports(Environment):
    def reset(self, task):
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE sales (id INTEGER PRIMARY KEY, city TEXT, item TEXT, pieces INTEGER)")
        rows = [tuple(row) for row in task.fields["sales"]]
        self.database.executemany("INSERT INTO sales (city, item, pieces) VALUES (?, ?, ?)", rows)

    @tool
    def tables(self) -> list:
        """Names of the tables."""
        return [name for (name,) in self.database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]

    @tool
    def query(self, sql: str) -> list:
        """Rows of a SELECT statement.

        Args:
            sql: one statement
        """
        if not sql.lstrip().lower().startswith("select"):
            return []
        try:
            return [list(row) for row in self.database.execute(sql).fetchmany(50)]
        except sqlite3.Error:
            return []

    def close(self):
        self.database.close()


def make_tasks(split, num):
    rng = random.Random(f"sql {split}")
    tasks = []
    for index in range(num):
        sales = [[rng.choice(CITIES), rng.choice(ITEMS), rng.randint(1, 30)] for _ in range(25)]
        city, item = sales[0][:2]
        answer = sum(pieces for a_city, an_item, pieces in sales if (a_city, an_item) == (city, item))
        prompt = f"How many pieces of the item {item} were sold in {city}? Answer with the number alone."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=(
                    {"role": "system", "content": "There is a database of sales. Ask it."},
                    {"role": "user", "content": prompt},
                ),
                fields={"sales": sales, "answer": str(answer)},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 30)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and str(last["content"]).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
