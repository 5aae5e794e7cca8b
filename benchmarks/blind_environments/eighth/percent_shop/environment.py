"""Shop arithmetic: what does a basket cost after a voucher? The work shall be shown in steps."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Reward, Task, Trajectory

ITEMS = ["kettle", "lamp", "rug", "mirror", "shelf", "vase", "clock", "stool", "bench", "tray", "basket", "curtain"]
VOUCHERS = {"SPRING": 10, "MOVE": 20, "LOYAL": 25, "CLEAR": 40, "HALF": 50}
STEPS = 3


class Shop(Environment):
    def reset(self, task: Task) -> None:
        self._prices: dict[str, int] = task.fields["prices"]

    @tool
    def price(self, item: str) -> int:
        """Price of one piece, in EUR.

        Args:
            item: name of the item
        """
        if item not in self._prices:
            raise ToolFailure(f"we do not sell {item}")
        return self._prices[item]

    @tool
    def voucher(self, code: str) -> str:
        """What a voucher takes off the whole basket.

        Args:
            code: as it is printed on the voucher
        """
        if code not in VOUCHERS:
            raise ToolFailure(f"there is no voucher {code}")
        return f"{VOUCHERS[code]} percent off"


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> Reward:
    """Accuracy, and worked steps, as each of them is wanted."""
    last = trajectory.messages[-1]
    text = (last.get("content") or "") if last["role"] == "assistant" else ""
    accuracy = float(tagged(trajectory) == trajectory.task.fields["answer"])
    steps = min(1.0, len(re.findall(r"^Step \d+:", text, re.MULTILINE)) / STEPS)
    return Reward(total=accuracy + steps, components={"accuracy": accuracy, "steps": steps})


scorer = exact_match("answer")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"shop-{split}-{number}")
    prices = {item: 20 * rng.randint(1, 15) for item in ITEMS}
    basket = {item: rng.randint(1, 4) for item in rng.sample(ITEMS, 3)}
    code = rng.choice(list(VOUCHERS))
    total = sum(prices[item] * count for item, count in basket.items())
    listed = ", ".join(f"{count} x {item}" for item, count in basket.items())
    prompt = (
        f"What does this basket cost with the voucher {code}: {listed}? Look up prices and voucher. Write your work in lines that "
        "begin with `Step 1:`, `Step 2:` and so on, and end with the amount in EUR with two decimals, as in <answer>12.50</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={
            "prices": prices, "basket": basket, "code": code, "answer": f"{total * (100 - VOUCHERS[code]) / 100:.2f}",
        },
        seed=number,
    )  # fmt: skip


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
