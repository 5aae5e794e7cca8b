"""Flight desk: find the cheapest connection that has enough free seats."""

from __future__ import annotations

import json
import random

from sparring.environments import Environment, tool
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

CITIES = ["Oslo", "Lima", "Rome", "Cairo", "Delhi", "Perth", "Quito", "Seoul", "Tunis", "Vienna", "Zurich", "Porto"]
CARRIERS = ["AX", "BQ", "CM", "DL", "EV", "FZ"]
PAGE = 4
INSTRUCTIONS = (
    "You work at a flight desk. Find the cheapest flight that has enough seats for the party. Then answer with its number and "
    'its price for one person: <final_output>{"flight": "AX100", "price": 123}</final_output>'
)


class FlightDesk(Environment):
    def reset(self, task: Task) -> None:
        self.flights = task.fields["flights"]

    @tool
    def search(self, origin: str, destination: str, seats: int = 1) -> str:
        """The four cheapest flights of a connection that have enough seats, cheapest first.

        Args:
            origin: city of departure
            destination: city of arrival
            seats: how many seats have to be free
        """
        found = [
            flight
            for flight in self.flights
            if flight["from"] == origin and flight["to"] == destination and int(flight["free"]) >= seats
        ]
        found.sort(key=lambda flight: flight["price"])
        if not found:
            return "No flights."
        return "\n".join(
            f"{flight['number']}: {flight['price']} EUR, {flight['free']} seats" for flight in found[:PAGE]
        )


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks() -> list[Task]:
    return _tasks()[:44]


def held_out_tasks() -> list[Task]:
    return _tasks()[44:]


def _tasks() -> list[Task]:
    rng = random.Random("flights-2")
    pairs = [(origin, destination) for origin in CITIES for destination in CITIES if origin != destination]
    return [_task(index, *pair, rng) for index, pair in enumerate(rng.sample(pairs, 60))]


def _task(index: int, origin: str, destination: str, rng: random.Random) -> Task:
    party = rng.randint(2, 6)
    # As in the export of the booking system, all values are text.
    prices = rng.sample(range(60, 100), 2) + rng.sample(range(100, 1900), 7)
    flights = []
    for price in prices:
        free = rng.randint(party, 40) if rng.random() < 0.7 else rng.randint(0, party - 1)
        number = f"{rng.choice(CARRIERS)}{rng.randint(100, 999)}"
        flights.append({"number": number, "from": origin, "to": destination, "price": str(price), "free": str(free)})
    flights[-1]["free"] = str(party + 3)
    flights += [
        {
            "number": f"ZZ{rng.randint(100, 999)}",
            "from": destination,
            "to": origin,
            "price": str(rng.randint(40, 300)),
            "free": "20",
        }
        for _ in range(2)
    ]
    rng.shuffle(flights)
    fitting = [flight for flight in flights if flight["from"] == origin and int(flight["free"]) >= party]
    best = min(fitting, key=lambda flight: int(flight["price"]))
    question = f"We are {party} people and want to fly from {origin} to {destination} as cheaply as possible."
    return Task(
        id=f"flight-{index}",
        messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}),
        fields={
            "flights": flights,
            "party": party,
            "origin": origin,
            "destination": destination,
            "answer": json.loads(json.dumps({"flight": best["number"], "price": int(best["price"])})),
        },
    )
