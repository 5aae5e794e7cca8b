"""Delivery: the shortest round from the depot past all stops and back."""

from __future__ import annotations

import itertools
import json
import random
import re

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

STREETS = [
    "Ash",
    "Birch",
    "Cedar",
    "Dale",
    "Elm",
    "Fir",
    "Grove",
    "Hazel",
    "Ivy",
    "Juniper",
    "Kiln",
    "Larch",
    "Mill",
    "Nut",
]
INSTRUCTIONS = (
    "Plan the shortest round for a van that begins and ends at the Depot and goes past each stop once. `distances` says how far it is "
    'from a place to all others, in minutes. Answer with the stops in order: <final_output>["Elm", "Ash", "Fir", "Ivy"]</final_output>'
)


class Dispatch(Environment):
    def reset(self, task: Task) -> None:
        self.minutes = task.fields["minutes"]

    @tool
    def distances(self, place: str) -> dict[str, int] | str:
        """Minutes from a place to all others.

        Args:
            place: a stop, or Depot
        """
        return self.minutes.get(place, f"there is no {place} on the map")


def reward(trajectory: Trajectory) -> float:
    """1 for the shortest round; less, the longer it is."""
    fields, last = trajectory.task.fields, trajectory.messages[-1]
    text = last.get("content") or ""
    said = re.findall(r"<final_output>(.*?)</final_output>", text, re.DOTALL)
    if last["role"] != "assistant" or len(said) != 1 or text.count("<final_output>") != 1:
        return 0.0
    try:
        stops = json.loads(said[0])
    except ValueError:
        return 0.0
    if (
        not isinstance(stops, list)
        or not stops
        or not all(stop in fields["stops"] for stop in stops if isinstance(stop, str))
    ):
        return 0.0
    if not all(isinstance(stop, str) for stop in stops):
        return 0.0
    length = sum(fields["minutes"][a][b] for a, b in itertools.pairwise(["Depot", *stops, "Depot"]) if a != b)
    return min(1.0, fields["shortest"] / length)


def scorer(trajectory: Trajectory) -> float:
    """1 for a round of the least length past all stops."""
    last, minutes = trajectory.messages[-1], trajectory.task.fields["minutes"]
    match = re.fullmatch(r"[^<]*<final_output>([^<]*)</final_output>[^<]*", str(last.get("content")))
    try:
        order = json.loads(match[1]) if match and last["role"] == "assistant" else None
    except ValueError:
        return 0.0
    stops = [place for place in minutes if place != "Depot"]
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(stops):
        return 0.0

    def length(places: list[str]) -> int:
        return (
            minutes["Depot"][places[0]]
            + sum(map(lambda a, b: minutes[a][b], places, places[1:]))
            + minutes[places[-1]]["Depot"]
        )

    return float(length(order) == min(length(list(each)) for each in itertools.permutations(stops)))


def train_tasks() -> list[Task]:
    return _tasks()[:36]


def held_out_tasks() -> list[Task]:
    return _tasks()[36:]


def _tasks() -> list[Task]:
    rng = random.Random("delivery")
    quads = rng.sample(list(itertools.combinations(STREETS, 4)), 50)
    return [_task(index, rng.sample(quad, 4), rng) for index, quad in enumerate(quads)]


def _task(index: int, stops: list[str], rng: random.Random) -> Task:
    at = {place: (rng.randint(0, 40), rng.randint(0, 40)) for place in ["Depot", *stops]}
    minutes = {a: {b: 1 + abs(at[a][0] - at[b][0]) + abs(at[a][1] - at[b][1]) for b in at if b != a} for a in at}
    shortest = min(
        sum(minutes[a][b] for a, b in itertools.pairwise(["Depot", *order, "Depot"]))
        for order in itertools.permutations(stops)
    )
    return Task(
        id=f"round-{index}",
        messages=(
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"Stops: {', '.join(stops)}."},
        ),
        fields={"stops": stops, "minutes": minutes, "shortest": shortest},
    )
