"""Goods that were moved about: follow the slips until the goods are found."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You look for goods in a warehouse. A shelf holds the goods, or a slip that says to which shelf they were moved; follow the slips.
Answer with the number of boxes alone, for example: 31
Each look costs a little."""

LOOK_COST = 0.15
SHELVES = [f"{letter}{number}" for letter in "ABCDEFGH" for number in range(1, 13)]


class Warehouse(Environment):
    def reset(self, task):
        self.shelves = task.fields["shelves"]

    @tool
    def look(self, shelf: str) -> str:
        """What is on a shelf: a number of boxes, or a slip.

        Args:
            shelf: for example C7
        """
        return self.shelves.get(shelf, "the shelf is empty")


def _task(split, index, rng):
    length = 2 + index % 8
    path = rng.sample(SHELVES, length)
    boxes = rng.randint(10, 99)
    shelves = {shelf: f"slip: moved to {following}" for shelf, following in zip(path, path[1:], strict=False)}
    shelves[path[-1]] = f"{boxes} boxes"
    for shelf in rng.sample([shelf for shelf in SHELVES if shelf not in path], 5):
        shelves[shelf] = f"{rng.randint(10, 99)} boxes"
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"How many boxes are there of the goods that were on shelf {path[0]}?"},
        ),
        fields={"shelves": shelves, "answer": str(boxes)},
    )


def train_tasks():
    rng = random.Random("inventory")
    return [_task("train", index, rng) for index in range(64)]


def held_out_tasks():
    rng = random.Random("second inventory")
    return [_task("held-out", index, rng) for index in range(24)]


def reward(trajectory):
    """Finding the goods, less what the looks cost."""
    last = trajectory.messages[-1]
    said = (last.get("content") or "").strip() if last["role"] == "assistant" and not last.get("tool_calls") else ""
    found = 1.0 if said == trajectory.task.fields["answer"] else 0.0
    return found - LOOK_COST * len(trajectory.transitions)


def scorer(trajectory):
    final = trajectory.messages[-1]
    if final["role"] != "assistant" or final.get("tool_calls"):
        return 0.0
    return float((final.get("content") or "").split() == [trajectory.task.fields["answer"]])
