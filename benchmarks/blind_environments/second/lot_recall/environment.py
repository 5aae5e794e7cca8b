"""Recall of food: the lots of a product that were stored too warm."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import NamedTuple

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import set_match
from sparring.types import Json, Reward, Task, Trajectory

SYSTEM = """You prepare recalls of food. A lot is recalled when it was stored warmer than its product may be, at any time. Check every lot
of the product. Answer with the numbers of all lots to recall, and no others, as a JSON array:
<lots>["L100"]</lots>"""
PRODUCTS = {
    "train": {"yogurt": 8, "salmon": 4, "cream": 7, "tofu": 6, "ham": 5},
    "held_out": {"butter": 10, "shrimp": 3, "quark": 9},
}
_ANSWER = re.compile(r"<lots>(.*?)</lots>", flags=re.DOTALL)


class Lot(NamedTuple):
    number: str
    degrees: list[int]
    """What the sensors read, in order."""


class LotRecall(Environment):
    def reset(self, task: Task) -> None:
        self._product: str = task.fields["product"]
        self._limit: int = task.fields["limit"]
        self._lots = {row[0]: Lot(*row) for row in task.fields["lots"]}

    @tool
    def product(self, name: str) -> dict[str, Json]:
        """The highest temperature that a product may be stored at, in whole degrees, and its lots."""
        if name != self._product:
            raise ToolFailure(f"there is no product {name!r}")
        return {"product": name, "highest": self._limit, "lots": list(self._lots)}

    @tool
    def temperatures(self, lot: str) -> list[int]:
        """All temperatures at which a lot was stored, in whole degrees.

        Args:
            lot: its number
        """
        if lot not in self._lots:
            raise ToolFailure(f"there is no lot {lot!r}")
        return self._lots[lot].degrees


def _given(trajectory: Trajectory) -> list[str]:
    last: Mapping[str, Json] = trajectory.messages[-1]
    found = _ANSWER.findall(str(last.get("content") or "")) if last["role"] == "assistant" else []
    try:
        value = json.loads(found[0]) if len(found) == 1 else []
    except ValueError:
        return []
    return [str(one) for one in value] if isinstance(value, list) else []


def reward(trajectory: Trajectory) -> Reward:
    """The share of lots that were named rightly; a lot named twice is not right twice."""
    given, wanted = _given(trajectory), set(trajectory.task.fields["recalled"])
    right = len(set(given) & wanted) / len(given) if given else 0.0
    return Reward(total=right, components={"right": right})


scorer = set_match("lots", "recalled")


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 12) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"recall {split} {index}")
    product = rng.choice(sorted(PRODUCTS[split]))
    limit = PRODUCTS[split][product]
    numbers = rng.sample(range(100, 600) if split == "train" else range(600, 1000), 6)
    num_warm = rng.randint(2, 4)
    lots = []
    for position, number in enumerate(numbers):
        degrees = [rng.randint(1, limit) for _ in range(5)]
        if position < num_warm:
            degrees[rng.randrange(5)] = limit + rng.randint(1, 6)
        lots.append(Lot(f"L{number}", degrees))
    recalled = sorted(lot.number for lot in lots[:num_warm])
    rng.shuffle(lots)
    user = f"Case {'R' if split == 'train' else 'S'}{index}: which lots of {product} have to be recalled?"
    return Task(
        id=f"recall-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
        fields={"product": product, "limit": limit, "lots": [list(lot) for lot in lots], "recalled": recalled},
        seed=index,
    )
