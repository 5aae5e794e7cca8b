"""A shop: the agent looks up the prices of what a customer wants, then states the total. Replace it with your environment."""

import re
from collections.abc import Sequence

from sparring import Environment, Message, Task, Trajectory, answer, tool, tool_call

PRICES = {"apple": 2, "bread": 4, "cheese": 7, "honey": 9, "milk": 3, "pear": 5, "rice": 6, "tea": 8}


class Shop(Environment):
    """The environment of one customer. Sparring creates a new object for every episode."""

    def reset(self, task: Task) -> None:
        self.looked_up: list[str] = []

    @tool
    def price(self, item: str) -> str:
        """Price of one item.

        Args:
            item: its name, in the singular
        """
        self.looked_up.append(item)
        return str(PRICES.get(item, "not for sale"))

    def demonstrate(self, task: Task) -> Sequence[Message]:
        """Return a perfect episode for the warm start, which looks up each price and then adds the prices."""
        calls = [tool_call("price", item=item) for item in task.fields["items"]]
        return [*calls, answer(f"Total: {task.fields['total']}")]


def stated_total(trajectory: Trajectory) -> int | None:
    """Return the total that the last message states, if the message contains nothing else."""
    last = trajectory.messages[-1]
    match = re.fullmatch(r"\s*Total: (0|[1-9]\d{0,99})\s*", str(last.get("content")), flags=re.ASCII)
    return int(match[1]) if last.get("role") == "assistant" and match else None


def reward(trajectory: Trajectory) -> tuple[float, dict[str, float]]:
    """Return 1 for the correct total and 0.2 for an incorrect total, because stating any total is a first step to
    learn. Metrics are charted."""
    named = stated_total(trajectory)
    right = float(named == trajectory.task.fields["total"])
    return right or 0.2 * (named is not None), {"right": right, "named_a_total": float(named is not None)}


def scorer(trajectory: Trajectory) -> float:
    """Return 1 only if the whole last message is the correct total. Partial credit is for training, not for evaluation.

    The scorer shares no code with the reward, so that a comparison of the two reveals mistakes.
    """
    return float(str(trajectory.messages[-1].get("content")).strip() == f"Total: {trajectory.task.fields['total']}")
