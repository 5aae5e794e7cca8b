"""Flight finder: which flight is cheapest with a bag?"""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

AIRPORTS = ["Bergen", "Split", "Malaga", "Cork", "Riga", "Basel", "Varna", "Bari"]
AIRLINES = {"Nordwing": "NW", "Bluejet": "BJ", "Corsa": "CO", "Alpina": "AL"}
FIRST_NUMBER = {"train": 70, "validation": 1070, "held_out": 2070}


class Flights(Environment):
    def reset(self, task: Task) -> None:
        self._flights: list[dict[str, str | int]] = task.fields["flights"]
        self._bags: dict[str, int] = task.fields["bags"]

    @tool
    def search_flights(self, origin: str, destination: str) -> list[dict[str, str | int]]:
        """Flights between two cities on the day: number, airline, departure and fare in euros without bags.

        Args:
            origin: city of departure
            destination: city of arrival
        """
        keys = ("number", "airline", "departs", "fare")
        return [
            {key: flight[key] for key in keys}
            for flight in self._flights
            if (flight["origin"], flight["destination"]) == (origin, destination)
        ]

    @tool
    def bag_fee(self, airline: str) -> int:
        """What an airline charges for one bag, in euros.

        Args:
            airline: name of the airline
        """
        if airline not in self._bags:
            raise ToolFailure(f"there is no airline {airline}")
        return self._bags[airline]


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
    """1 for the cheapest flight."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def draw_flights(rng: random.Random, origin: str, destination: str) -> list[dict[str, str | int]]:
    """Some flights between two cities, by departure."""
    flights = [
        {
            "number": f"{AIRLINES[airline]}{key}",
            "airline": airline,
            "origin": origin,
            "destination": destination,
            "departs": f"{rng.randint(6, 21):02}:{rng.choice([0, 10, 20, 30, 40, 50]):02}",
            "fare": 5 * rng.randint(8, 26),
        }
        for airline, key in zip(rng.choices(sorted(AIRLINES), k=7), rng.sample(range(100, 1000), 7), strict=True)
    ]
    return sorted(flights, key=lambda flight: (flight["departs"], flight["number"]))


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"flights {split} {number}")
    origin, destination, other = rng.sample(AIRPORTS, 3)
    bags = {airline: 5 * rng.randint(3, 12) for airline in AIRLINES}
    flights = draw_flights(rng, origin, destination)
    best = min(flights, key=lambda flight: flight["fare"] + bags[flight["airline"]])
    flights += draw_flights(rng, origin, other)
    text = (
        f"Trip {FIRST_NUMBER[split] + number}: I fly from {origin} to {destination} and have one bag. Which flight is the cheapest, "
        "fare and bag together? End with its number, as in <answer>XY012</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"flights": flights, "bags": bags, "route": [origin, destination], "answer": best["number"]},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
