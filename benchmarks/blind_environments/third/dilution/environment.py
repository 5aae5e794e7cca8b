"""Diluting stock solutions: how much stock makes a volume of a weaker solution (c1 v1 = c2 v2)?"""

import random
import re
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.scorers import numeric_match
from sparring.types import Task

SALTS = ["NaCl", "KCl", "MgSO4", "CaCl2", "NH4Cl", "KNO3", "LiBr", "NaOH", "K2CO3"]


class Bench(Environment):
    def reset(self, task):
        self.stocks = task.fields["stocks"]

    @tool
    def concentration(self, salt: str) -> str:
        """Concentration of the stock solution of a salt.

        Args:
            salt: formula
        """
        if salt not in self.stocks:
            return "no such stock"
        return f"{self.stocks[salt]} mmol/l"

    @tool
    def divide(self, dividend: float, divisor: Annotated[float, Bounded(ge=0.001)]) -> float:
        """A quotient, to four digits after the point.

        Args:
            dividend: what is divided
            divisor: by what
        """
        return round(dividend / divisor, 4)


def reward(trajectory):
    message = trajectory.messages[-1]
    if message["role"] != "assistant":
        return 0.0
    found = re.findall(r"<final_output>([^<]*)</final_output>", message.get("content") or "")
    try:
        given = float(found[0]) if len(found) == 1 else None
    except ValueError:
        return 0.0
    return float(given is not None and abs(given - trajectory.task.fields["answer"]) <= 0.01)


scorer = numeric_match(tolerance=0.01)


def make(split, num):
    rng = random.Random(2024)
    tasks = []
    for n in range(num):
        stocks = {salt: rng.randrange(200, 3000, 50) for salt in rng.sample(SALTS, 5)}
        salt = rng.choice(sorted(stocks))
        target, volume = rng.randrange(5, 190), rng.randrange(50, 1000, 10)
        prompt = (
            f"How many ml of the {salt} stock make {volume} ml of a solution of {target} mmol/l? Two digits after the point, the "
            "number alone: <final_output>12.34</final_output>"
        )
        tasks.append(
            Task(
                id=f"{split}-{n}",
                messages=({"role": "user", "content": prompt},),
                fields={
                    "stocks": stocks,
                    "salt": salt,
                    "target": target,
                    "volume": volume,
                    "answer": round(volume * target / stocks[salt], 2),
                },
            )
        )
    return tasks


def train_tasks():
    return make("train", 40)


def held_out_tasks():
    return make("held-out", 16)
