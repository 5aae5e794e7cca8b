"""The way from one bus stop to another, stop by stop."""

import json
import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You plan bus rides. Find the way from the first stop to the second; there is exactly one. Answer with a JSON array of all stops on
the way alone, in order, the first and the last included, for example: ["Mill","Dock","Fair"]"""

STOPS = (
    "Mill", "Dock", "Fair", "Gate", "Hill", "Park", "Quay", "Ring", "Spire", "Tower", "Union", "Vale", "Wharf", "Abbey", "Bridge",
)  # fmt: skip


class Buses(Environment):
    def reset(self, task):
        self.lines = task.fields["lines"]

    @tool
    def next_stops(self, stop: str) -> list[str] | str:
        """Stops that the buses from a stop go to next."""
        if stop not in STOPS:
            return "no such stop"
        return self.lines.get(stop, [])


def _task(split, index, rng):
    stops = rng.sample(STOPS, len(STOPS))
    lines, way_to = {}, {stops[0]: [stops[0]]}
    for place, stop in enumerate(stops[:7]):
        lines[stop] = stops[2 * place + 1 : 2 * place + 3]
        for following in lines[stop]:
            way_to[following] = [*way_to[stop], following]
    goal = rng.choice(stops[3:])
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"How do I get from {stops[0]} to {goal}?"},
        ),
        fields={"lines": lines, "way": way_to[goal]},
    )


def train_tasks():
    rng = random.Random(77)
    return [_task("train", index, rng) for index in range(48)]


def held_out_tasks():
    rng = random.Random(78)
    return [_task("held-out", index, rng) for index in range(24)]


def _answer(trajectory):
    """The array that the episode ends with, None without one."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    try:
        said = json.loads(last.get("content") or "")
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, list) else None


def reward(trajectory):
    way = _answer(trajectory)
    if way is None:
        return 0.0
    return float(all(said == right for said, right in zip(way, trajectory.task.fields["way"])))


def scorer(trajectory):
    final = trajectory.messages[-1]
    text = (final.get("content") or "") if final["role"] == "assistant" and not final.get("tool_calls") else ""
    try:
        return 1.0 if json.loads(text) == trajectory.task.fields["way"] else 0.0
    except (ValueError, RecursionError):
        return 0.0
