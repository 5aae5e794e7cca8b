"""A till that cuts the prices of what is put into the basket to whole cents in binary."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task


class Till(Environment):
    def reset(self, task):
        self.goods = {one["code"]: one for one in task.fields["goods"]}
        self.basket = []

    @tool
    def put(self, code: str) -> str:
        """Put something into the basket."""
        if code not in self.goods:
            return f"there is no {code}"
        self.basket.append(code)
        return f"{code} is in the basket"

    @tool
    def total(self) -> str:
        """What the basket costs, in euros."""
        cents = sum(int(float(self.goods[code]["price"]) * 100) for code in self.basket)
        return f"{cents / 100:.2f}"

    def final_state(self):
        return {"basket": sorted(self.basket)}


def make_tasks(split, num):
    rng = random.Random(f"till {split}")
    tasks = []
    for index in range(num):
        goods = [
            {"code": f"G{number}", "price": f"{rng.randint(100, 9900) / 100:.2f}"}
            for number in rng.sample(range(10, 99), 6)
        ]
        wanted = rng.choice(goods)
        message = {
            "role": "user",
            "content": f"Put {wanted['code']} into the basket. What does it cost? The number alone.",
        }
        tasks.append(
            Task(id=f"{split}-{index}", messages=(message,), fields={"goods": goods, "answer": wanted["price"]})
        )
    return tasks


def reward(trajectory):
    return float(str(trajectory.messages[-1].get("content")).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
train_tasks = partial(make_tasks, "train", 24)
held_out_tasks = partial(make_tasks, "held_out", 8)
