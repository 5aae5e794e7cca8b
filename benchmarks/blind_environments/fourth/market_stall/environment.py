"""A buyer at the market: compare offers, buy from the cheapest stall that has enough."""

import random

from sparring.environments import StatefulEnvironment, tool
from sparring.scorers import state_difference
from sparring.types import Task

SYSTEM = """\
You buy for a restaurant. Buy all of what is asked for at one stall: the cheapest one that has enough in stock. One of the three
cheapest always has. A purchase cannot be undone. Say done when you have bought."""

STALLS = ("Amsel", "Birke", "Calla", "Distel", "Erle", "Flieder", "Ginster")
GOODS = ("plums", "figs", "leeks", "beets", "limes", "dates", "pears", "herbs")

SCHEMA = """
CREATE TABLE offers (stall TEXT, item TEXT, price TEXT, stock INTEGER);
CREATE TABLE purchases (stall TEXT, item TEXT, amount INTEGER);
"""


class Market(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.state.database.executescript(SCHEMA)
        self.state.database.executemany("INSERT INTO offers VALUES (?, ?, ?, ?)", task.fields["offers"])

    @tool
    def offers(self, item: str) -> list[dict]:
        """The three cheapest offers of an item, cheapest first; prices in euros a kilogram, stock in kilograms."""
        rows = self.state.database.execute(
            "SELECT stall, price, stock FROM offers WHERE item = ? ORDER BY price, stall LIMIT 3", (item,)
        )
        return [{"stall": stall, "price": price, "stock": stock} for stall, price, stock in rows]

    @tool
    def buy(self, stall: str, item: str, kilograms: int) -> str:
        """Buy from a stall."""
        row = self.state.database.execute(
            "SELECT stock FROM offers WHERE stall = ? AND item = ?", (stall, item)
        ).fetchone()
        if row is None or kilograms < 1 or kilograms > row[0]:
            return "refused: the stall does not have that much"
        self.state.database.execute(
            "UPDATE offers SET stock = stock - ? WHERE stall = ? AND item = ?", (kilograms, stall, item)
        )
        self.state.database.execute("INSERT INTO purchases VALUES (?, ?, ?)", (stall, item, kilograms))
        return "bought"

    def final_state(self):
        rows = self.state.database.execute(
            "SELECT stall, item, SUM(amount) FROM purchases GROUP BY stall, item ORDER BY stall, item"
        )
        return {"purchases": [list(row) for row in rows]}


def _task(split, index, rng):
    wanted, other = rng.sample(GOODS, 2)
    kilograms = rng.randint(5, 12)
    offers = []
    for item in (wanted, other):
        cents = rng.sample(range(650, 1450, 10), 6)
        for stall, price in zip(rng.sample(STALLS, 6), cents, strict=True):
            offers.append([stall, item, f"{price / 100:.2f}", rng.randint(1, 30)])
    ranked = sorted((row for row in offers if row[1] == wanted), key=lambda row: float(row[2]))
    best = rng.randrange(3)
    for row in ranked[:best]:
        row[3] = rng.randint(1, kilograms - 1)
    ranked[best][3] = rng.randint(kilograms, 30)
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"We need {kilograms} kilograms of {wanted}."},
        ),
        fields={"offers": offers, "state": {"purchases": [[ranked[best][0], wanted, kilograms]]}},
    )


def train_tasks():
    rng = random.Random(11)
    return [_task("train", index, rng) for index in range(40)]


def held_out_tasks():
    rng = random.Random(12)
    return [_task("held-out", index, rng) for index in range(20)]


def reward(trajectory):
    done = (trajectory.final_state or {}).get("purchases", [])
    return 1.0 if done == trajectory.task.fields["state"]["purchases"] else 0.0


scorer = state_difference("state")
