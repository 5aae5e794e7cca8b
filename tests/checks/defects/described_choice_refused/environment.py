"""A depot whose description lists an order that the code does not know."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

NAMES = [
    "Pump 4",
    "garden hose",
    "Éclair lamp",
    "bench",
    "drill",
    "saw",
    "ladder",
    "anvil",
    "cart",
    "heater",
    "rope",
    "vice",
]


class Depot(Environment):
    def reset(self, task):
        self.items = task.fields["items"]

    @tool
    def stock(self, order: str) -> list:
        """Codes of all items in an order.

        Args:
            order: 'name', 'shelf' or 'price'
        """
        if order not in ("name", "shelf"):
            raise ValueError(f"unknown order {order}")
        return [one["code"] for one in sorted(self.items, key=lambda one: one[order])]


def make_tasks(split, num):
    rng = random.Random(f"depot {split}")
    tasks = []
    for index in range(num):
        items = [
            {
                "code": f"{rng.choice('KLMN')}{rng.randint(100, 999)}{number}",
                "name": name,
                "pieces": rng.randint(2, 140),
                "price": rng.randint(200, 9900) / 100,
                "shelf": rng.randint(1, 60),
                "room": rng.choice(["north", "south", "cellar"]),
                "delivered": f"2025-{rng.randint(1, 9):02d}-{rng.randint(10, 28)}",
            }
            for number, name in enumerate(rng.sample(NAMES, 9))
        ]
        wanted = rng.choice(items)
        prompt = f"On which shelf is the item {wanted['code']}? Answer with its number alone."
        message = {"role": "user", "content": prompt}
        fields = {"items": items, "answer": str(wanted["shelf"])}
        tasks.append(Task(id=f"{split}-{index}", messages=(message,), fields=fields))
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
