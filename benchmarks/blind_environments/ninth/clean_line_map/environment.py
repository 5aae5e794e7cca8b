"""Underground railway: how many stops lie between two stations of the one network of the town?"""

from __future__ import annotations

import itertools
import random
import re
from functools import cache

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

LINES = {
    "red": ["Airport", "Fair", "Museum", "Cathedral", "Market", "Bridge", "Harbour"],
    "blue": ["Forest", "Hospital", "Museum", "Opera", "Market", "Stadium", "Lake"],
    "green": ["Zoo", "Opera", "University", "Bridge", "Tower", "Gardens"],
}
STATIONS = sorted({station for line in LINES.values() for station in line})
TRAINED, VALIDATED = 76, 92


class Network(Environment):
    """The same network in every episode, with nothing that a call can change."""

    @tool
    def lines(self) -> list[str]:
        """Names of the lines."""
        return list(LINES)

    @tool
    def stations(self, line: str) -> list[str]:
        """Stations of a line in their order. Trains run both ways.

        Args:
            line: name of the line
        """
        if line not in LINES:
            raise ToolFailure(f"there is no line {line}; there are {', '.join(LINES)}")
        return LINES[line]


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
    """1 for the right number."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


@cache
def fewest_rides(start: str, end: str) -> int:
    """Least number of rides from one station to the next that lead from start to end."""
    reached, rides = {start}, 0
    while end not in reached:
        rides += 1
        reached |= {
            other
            for line in LINES.values()
            for pair in itertools.pairwise(line)
            for other in pair
            if reached & set(pair)
        }
    return rides


@cache
def ways() -> list[tuple[str, str]]:
    """All pairs of stations, each in one direction, shuffled."""
    rng = random.Random("underground")
    pairs = [rng.sample(pair, 2) for pair in itertools.combinations(STATIONS, 2)]
    rng.shuffle(pairs)
    return [(start, end) for start, end in pairs]


def make_task(split: str, number: int, way: tuple[str, str]) -> Task:
    start, end = way
    text = (
        f"I am at {start} and go to {end} by underground. How many rides from one station to the next does it take at least, no matter "
        "how often I change? End with the number, as in <answer>3</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"start": start, "end": end, "answer": str(fewest_rides(start, end))},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number, way) for number, way in enumerate(ways()[:TRAINED])]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number, way) for number, way in enumerate(ways()[TRAINED:VALIDATED])]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number, way) for number, way in enumerate(ways()[VALIDATED:])]
