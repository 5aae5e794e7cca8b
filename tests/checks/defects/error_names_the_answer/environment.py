"""A till: add up what a customer has, and charge the sum. A wrong sum is refused with the right one."""

import random

from sparring.environments import Environment, answer, tool, tool_call
from sparring.scorers import state_difference
from sparring.types import Task


class Till(Environment):
    def reset(self, task):
        self.prices = task.fields["prices"]
        self.charged = None

    @tool
    def price(self, item: str) -> int:
        """The price of an item in cents."""
        if item not in self.prices:
            raise ValueError(f"there is no {item}; there are {', '.join(self.prices)}")
        return self.prices[item]

    @tool
    def charge(self, cents: int) -> str:
        """Charge the sum."""
        if cents != sum(self.prices.values()):
            raise ValueError(f"the sum is {sum(self.prices.values())}, not {cents}")
        self.charged = cents
        return "charged"

    def final_state(self):
        return {"charged": self.charged}

    def demonstrate(self, task):
        prices = task.fields["prices"]
        return [
            *(tool_call("price", item=item) for item in prices),
            tool_call("charge", cents=sum(prices.values())),
            answer("Thank you."),
        ]


def tasks(split, num):
    rng, found = random.Random(split), []
    for index in range(num):
        prices = {item: rng.randint(101, 999) for item in rng.sample(("tea", "bread", "milk", "soap", "rice"), 3)}
        prompt = f"Customer {split}-{index} has {', '.join(prices)}. Charge the sum."
        fields = {"prices": prices, "state": {"charged": sum(prices.values())}}
        found.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": prompt},), fields=fields))
    return found


def train_tasks():
    return tasks("train", 40)


def held_out_tasks():
    return tasks("held_out", 10)


def reward(trajectory):
    return float(trajectory.final_state["charged"] == sum(trajectory.task.fields["prices"].values()))


scorer = state_difference("state")
