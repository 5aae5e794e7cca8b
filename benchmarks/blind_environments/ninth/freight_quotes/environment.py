"""Freight quotes: what does a haulage firm charge between two towns of a road map?"""

from __future__ import annotations

import heapq
import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

TOWNS = ["Alm", "Bray", "Cove", "Dorn", "Elst", "Fell"]
FIRST_NUMBER = {"train": 10000, "validation": 20000, "held_out": 30000}
DISTANCES: dict[tuple[str, str], int] = {}
"""Distances that have been worked out, so that no route is searched twice."""


class Haulage(Environment):
    def reset(self, task: Task) -> None:
        self._roads: list[list[str | int]] = task.fields["roads"]
        self._tariff: dict[str, int] = task.fields["tariff"]

    @tool
    def road_distance(self, start: str, end: str) -> int:
        """Kilometres of the shortest way by road between two towns.

        Args:
            start: name of a town
            end: name of another town
        """
        for town in (start, end):
            if town not in TOWNS:
                raise ToolFailure(f"{town} is not on the map; there are {', '.join(TOWNS)}")
        key = (min(start, end), max(start, end))
        if key not in DISTANCES:
            DISTANCES[key] = shortest(self._roads, start, end)
        return DISTANCES[key]

    @tool
    def tariff(self) -> dict[str, int]:
        """Tariff of the firm in euros: what each order costs (order), and what each kilometre costs (kilometre)."""
        return self._tariff


CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)


def final_answer(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message. Code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", str(last.get("content") or ""))
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the right price."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def shortest(roads: list[list[str | int]], start: str, end: str) -> int:
    """Length of the shortest way."""
    queue, seen = [(0, start)], set()
    while queue:
        length, town = heapq.heappop(queue)
        if town == end:
            return length
        if town in seen:
            continue
        seen.add(town)
        for one, other, kilometres in roads:
            if town in (one, other):
                heapq.heappush(queue, (length + int(kilometres), str(other if town == one else one)))
    raise ValueError(f"no road leads from {start} to {end}")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"haulage {split} {number}")
    order = rng.sample(TOWNS, len(TOWNS))
    roads = [[order[place], rng.choice(order[:place]), rng.randint(8, 70)] for place in range(1, len(order))]
    roads += [[*rng.sample(TOWNS, 2), rng.randint(8, 70)] for _ in range(3)]
    start, end = rng.sample(TOWNS, 2)
    tariff = {"order": rng.randint(20, 60), "kilometre": rng.randint(2, 5)}
    price = tariff["order"] + tariff["kilometre"] * shortest(roads, start, end)
    text = (
        f"Enquiry {FIRST_NUMBER[split] + number}: what does it cost in all to have a load taken from {start} to {end} by the shortest "
        "way? End with the euros, as in <answer>123</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"roads": roads, "tariff": tariff, "way": [start, end], "answer": str(price)},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
