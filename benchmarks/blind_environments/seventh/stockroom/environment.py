"""Stockroom: bring the shelves to what an order list says."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

OPENING_STOCK = {
    "bolt": 40,
    "nut": 55,
    "washer": 80,
    "hinge": 25,
    "bracket": 30,
    "screw": 90,
    "anchor": 35,
    "clamp": 20,
}
INSTRUCTIONS = (
    "You run a stockroom. Take out what is asked for with `take`, put in what is delivered with `put`, and leave everything else "
    "as it is. `count` says how many there are of a part. Say done when the work is done."
)


class Stockroom(Environment):
    def reset(self, task: Task) -> None:
        self.shelves = OPENING_STOCK

    @tool
    def count(self, part: str) -> int | str:
        """How many there are of a part."""
        return self.shelves.get(part, "no such part")

    @tool
    def take(self, part: str, num: Annotated[int, Bounded(ge=1, le=50)]) -> str:
        """Take parts off the shelf.

        Args:
            part: which
            num: how many
        """
        if self.shelves.get(part, 0) < num:
            return f"There are not {num} of {part}; nothing was taken."
        self.shelves[part] -= num
        return f"Took {num} of {part}, {self.shelves[part]} are left."

    @tool
    def put(self, part: str, num: Annotated[int, Bounded(ge=1, le=50)]) -> str:
        """Put parts on the shelf.

        Args:
            part: which
            num: how many
        """
        if part not in self.shelves:
            return f"There is no shelf for {part}."
        self.shelves[part] += num
        return f"There are {self.shelves[part]} of {part} now."

    def final_state(self) -> dict[str, dict[str, int]]:
        return {"shelves": dict(sorted(self.shelves.items()))}


def reward(trajectory: Trajectory) -> float:
    """The share of the changed shelves that are as they should be; nothing when an untouched one was changed."""
    wanted, orders = trajectory.task.fields["state"]["shelves"], trajectory.task.fields["orders"]
    if trajectory.final_state is None:
        return 0.0
    shelves = trajectory.final_state["shelves"]
    changed = {order["part"] for order in orders}
    if any(shelves[part] != num for part, num in wanted.items() if part not in changed):
        return 0.0
    return sum(shelves[part] == wanted[part] for part in changed) / len(changed)


scorer = state_difference("state")


def train_tasks() -> list[Task]:
    return _tasks()[:36]


def held_out_tasks() -> list[Task]:
    return _tasks()[36:]


def _tasks() -> list[Task]:
    rng = random.Random("stockroom")
    tasks: dict[str, Task] = {}
    while len(tasks) < 48:
        shelves, orders = dict(OPENING_STOCK), []
        for part in rng.sample(sorted(shelves), rng.randint(2, 3)):
            verb, num = rng.choice(("take", "put")), rng.randint(2, 19)
            shelves[part] += num if verb == "put" else -num
            orders.append({"verb": verb, "part": part, "num": num})
        text = "; ".join(f"{order['verb']} {order['num']} of {order['part']}" for order in orders)
        if text not in tasks:
            tasks[text] = Task(
                id=f"orders-{len(tasks)}",
                messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": f"Please {text}."}),
                fields={"orders": orders, "state": {"shelves": dict(sorted(shelves.items()))}},
            )
    return list(tasks.values())
