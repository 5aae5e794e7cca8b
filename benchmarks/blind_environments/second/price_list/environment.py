"""A shop's price list: read prices, discount a category, report what became of two products."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Json, Task, Trajectory

SYSTEM = """You keep the price list of a shop. Prices are in cents. Lower the prices of the category that is named, once, and report the
price of one product before the change and of one after it, as the price list has them. New prices are rounded as the list rounds them.
<final_output>{"before":0,"after":0}</final_output>"""
CATEGORIES = {"train": ["lamps", "chairs", "rugs", "shelves", "desks"], "held_out": ["mirrors", "clocks", "vases"]}
BY = "SELECT sku, name, category, cents FROM products WHERE "


class PriceList(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        database = self.state.database
        database.execute("CREATE TABLE products (sku TEXT PRIMARY KEY, name TEXT, category TEXT, cents INTEGER)")
        database.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", task.fields["products"])
        # A product is read many times in an episode; its row is fetched once.
        self._read: dict[str, dict[str, Json]] = {}

    def _product(self, sku: str) -> dict[str, Json]:
        if sku not in self._read:
            row = self.state.database.execute(BY + "sku = ?", (sku,)).fetchone()
            if row is None:
                raise ToolFailure(f"there is no product {sku}")
            self._read[sku] = dict(zip(("sku", "name", "category", "cents"), row, strict=True))
        return self._read[sku]

    @tool
    def product(self, sku: str) -> dict[str, Json]:
        """A product of the price list, with its price in cents as it is now."""
        return self._product(sku)

    @tool
    def category(self, name: str) -> list[str]:
        """The products of a category, by their skus."""
        rows = self.state.database.execute(
            "SELECT sku FROM products WHERE category = ? ORDER BY sku", (name,)
        ).fetchall()
        if not rows:
            raise ToolFailure(f"there is no category {name!r}")
        return [sku for (sku,) in rows]

    @tool
    def discount(self, category: str, percent: Annotated[int, Bounded(ge=1, le=50)]) -> str:
        """Lower all prices of a category by some percent, each rounded down to 5 cents.

        Args:
            category: its name
            percent: of the price as it is now
        """
        changed = self.state.database.execute(
            "UPDATE products SET cents = cents * (100 - ?) / 500 * 5 WHERE category = ?", (percent, category)
        )
        if changed.rowcount == 0:
            raise ToolFailure(f"there is no category {category!r}")
        return f"{changed.rowcount} prices lowered by {percent} percent"

    def final_state(self) -> Mapping[str, Json]:
        return {"cents": dict(self.state.database.execute("SELECT sku, cents FROM products ORDER BY sku").fetchall())}


_fields = json_fields("final_output")
_exact = json_exact("final_output")


def reward(trajectory: Trajectory) -> float:
    """The report's share, when the price list is as it should be."""
    is_done = trajectory.final_state == trajectory.task.fields["state"]
    return _fields(trajectory).total if is_done else 0.0


def scorer(trajectory: Trajectory) -> float:
    cents = (trajectory.final_state or {}).get("cents", {})
    wanted = trajectory.task.fields["state"]["cents"]
    return _exact(trajectory).value * all(cents.get(sku) == price for sku, price in wanted.items())


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 16) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"prices {split} {index}")
    chosen, other = rng.sample(CATEGORIES[split], 2)
    skus = [f"{'K' if split == 'train' else 'V'}{number}" for number in rng.sample(range(1000, 9999), 6)]
    products = []
    for position, sku in enumerate(skus):
        category = chosen if position < 3 else other
        products.append(
            [sku, f"{category[:-1]} {rng.choice(('Ola', 'Bo', 'Ida', 'Mons'))}", category, rng.randint(200, 9000) * 5]
        )
    percent = rng.randint(2, 40)
    after = {
        sku: cents * (100 - percent) // 500 * 5 if category == chosen else cents for sku, _, category, cents in products
    }
    first = rng.choice(products[:3])
    second = first if rng.random() < 0.6 else rng.choice([one for one in products[:3] if one is not first])
    which = "the same product" if second is first else f"{second[0]}"
    user = f"Lower {chosen} by {percent} percent. What did {first[0]} cost before, and what does {which} cost now?"
    return Task(
        id=f"prices-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
        fields={
            "products": products,
            "change": [chosen, percent, first[0], second[0]],
            "state": {"cents": dict(sorted(after.items()))},
            "answer": {"before": first[3], "after": after[second[0]]},
        },
        seed=index,
    )
