"""The price list of a shop, with a cache since the database is slow."""

import random
import sqlite3
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

GOODS = ["tea", "rice", "soap", "salt", "oil", "jam", "flour", "yeast", "honey", "beans"]


class PriceDesk(Environment):
    def reset(self, task):
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE prices (name TEXT PRIMARY KEY, cents INTEGER)")
        self.database.executemany("INSERT INTO prices VALUES (?, ?)", list(task.fields["prices"].items()))
        self.cache = {}

    @tool
    def goods(self) -> list:
        """Names of all goods."""
        return [name for (name,) in self.database.execute("SELECT name FROM prices ORDER BY name")]

    @tool
    def price(self, name: str) -> str:
        """The price of a good today, in cents."""
        if name not in self.cache:
            row = self.database.execute("SELECT cents FROM prices WHERE name = ?", (name,)).fetchone()
            if row is None:
                return "unknown good"
            self.cache[name] = row[0]
        return str(self.cache[name])

    @tool
    def set_price(self, name: str, cents: int) -> str:
        """Change the price of a good.

        Args:
            name: of the good
            cents: the new price in cents
        """
        done = self.database.execute("UPDATE prices SET cents = ? WHERE name = ?", (cents, name))
        return "changed" if done.rowcount else "unknown good"

    def final_state(self):
        return dict(self.database.execute("SELECT name, cents FROM prices ORDER BY name").fetchall())

    def close(self):
        self.database.close()


def make_tasks(split, num):
    rng = random.Random(f"{split} prices")
    tasks = []
    for index in range(num):
        prices = {name: rng.randint(50, 900) for name in sorted(rng.sample(GOODS, 4))}
        name = rng.choice(sorted(prices))
        add, other = rng.randint(5, 90), rng.choice([good for good in sorted(prices) if good != name])
        prompt = f"Make {name} dearer by {add} cents. Then let {other} cost what {name} costs now. Then say done."
        state = {**prices, name: prices[name] + add, other: prices[name] + add}
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"prices": prices, "state": state},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
