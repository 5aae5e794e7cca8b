"""A shop: ask for the prices of what a customer wants, then say the total. Replace it with the world of your agent."""

import re
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Task, Trajectory

PRICES = {"apple": 2, "bread": 4, "cheese": 7, "honey": 9, "milk": 3, "pear": 5, "rice": 6, "tea": 8}


class Shop(Environment):
    """A fresh object for every episode: whatever it keeps belongs to one customer."""

    def reset(self, task: Task) -> None:
        self.asked: list[str] = []

    @tool
    def price(self, item: str) -> str:
        """Price of one item.

        Args:
            item: its name, in the singular
        """
        self.asked.append(item)
        return str(PRICES.get(item, "not for sale"))

    def demonstrate(self, task: Task) -> Sequence[Message]:
        """A perfect episode, for the warm start: ask for each price, then add."""
        calls = [tool_call("price", item=item) for item in task.fields["items"]]
        return [*calls, answer(f"Total: {task.fields['total']}")]


def said(trajectory: Trajectory) -> int | None:
    """The total that the last message names, if it says nothing else."""
    last = trajectory.messages[-1]
    match = re.fullmatch(r"\s*Total: (0|[1-9]\d{0,99})\s*", str(last.get("content")), flags=re.ASCII)
    return int(match[1]) if last.get("role") == "assistant" and match else None


def reward(trajectory: Trajectory) -> tuple[float, dict[str, float]]:
    """1 for the right total; 0.2 for a total that is wrong, as a first step to learn. Metrics are charted."""
    named = said(trajectory)
    right = float(named == trajectory.task.fields["total"])
    return right or 0.2 * (named is not None), {"right": right, "named_a_total": float(named is not None)}


def scorer(trajectory: Trajectory) -> float:
    """1 only when the whole last message is the right total: partial credit is for training, not for judging.

    It shares no code with the reward, so that a mistake in one shows against the other.
    """
    return float(str(trajectory.messages[-1].get("content")).strip() == f"Total: {trajectory.task.fields['total']}")
