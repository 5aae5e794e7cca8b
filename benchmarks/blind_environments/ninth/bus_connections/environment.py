"""Bus connections: when does a traveller arrive at the earliest, with one change?"""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

VILLAGES = ["Arden", "Birch", "Colm", "Dale", "Esk", "Firth", "Glen", "Holt", "Isle", "Kirk", "Lund", "Moor"]
CHANGE = 5
"""Minutes that a traveller needs to change buses."""
GREETINGS = {
    "train": "Hello, I have to get from {start} to {end} today.",
    "validation": "Good morning! Today I am on my way to {end}, and I am in {start} now.",
    "held_out": "I want to go to {end} by bus today. I start in {start}.",
}


class Timetable(Environment):
    def reset(self, task: Task) -> None:
        self._buses: list[list[str]] = task.fields["buses"]

    @tool
    def departures(self, village: str) -> list[dict[str, str]]:
        """All buses that leave a village today, by time: where they go, when they leave and when they arrive there.

        Args:
            village: name of the village
        """
        found = [bus for bus in self._buses if bus[0] == village]
        if not found:
            raise ToolFailure(f"no bus leaves {village} today")
        return [{"to": bus[1], "leaves": bus[2], "arrives": bus[3]} for bus in sorted(found, key=lambda bus: bus[2])]


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
    """1 for the right time."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def make_network(rng: random.Random) -> tuple[list[list[str]], str, str, int, int]:
    """Buses, start, end, minute from which the traveller can leave, and minute of the earliest arrival."""
    start, end, *hubs = rng.sample(VILLAGES, 5)
    ready = rng.randint(7 * 60, 12 * 60)
    legs: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for hub in hubs:
        for one, other in ((start, hub), (hub, end)):
            rides, duration = [], rng.randint(15, 50)
            leaves = ready - rng.randint(30, 60)
            for _ in range(6):
                leaves += rng.randint(17, 55)
                rides.append((leaves, leaves + duration))
            legs[one, other] = rides
    earliest = min(
        second[1]
        for hub in hubs
        for first in legs[start, hub]
        if first[0] >= ready
        for second in legs[hub, end]
        if second[0] >= first[1] + CHANGE
    )
    buses = [[*leg, clock(leaves), clock(arrives)] for leg, rides in legs.items() for leaves, arrives in rides]
    return buses, start, end, ready, earliest


def make_task(split: str, number: int) -> Task:
    buses, start, end, ready, earliest = make_network(random.Random(f"buses {number}"))
    text = (
        f"{GREETINGS[split].format(start=start, end=end)} I can leave at {clock(ready)} or later. No bus goes the whole way, so I have "
        f"to change once, and I need at least {CHANGE} minutes to change. When can I be there at the earliest? End with the time, as "
        "in <answer>06:05</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"buses": buses, "start": start, "end": end, "ready": clock(ready), "answer": clock(earliest)},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
