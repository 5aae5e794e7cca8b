"""An airline's rebooking desk, with everything in plain dicts."""

from __future__ import annotations

import random
from typing import Any

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

SYSTEM = """You rebook passengers of an airline. A passenger holds one booking at a time, so cancel the old one before you make the new one.
Choose the flight to the wanted city that departs first after the time that is named and has a free seat. Leave other passengers'
bookings as they are. Answer with the word done at the end."""
CITIES = {"train": ["Lima", "Oslo", "Accra", "Kyoto", "Quito"], "held_out": ["Porto", "Riga", "Dakar", "Cusco"]}
NAMES = {
    "train": ["Abbas", "Berg", "Cruz", "Diallo", "Engel", "Fofana", "Grant", "Hirsch", "Ito", "Jansen"],
    "held_out": ["Kaya", "Lopez", "Mensah", "Nagy", "Olsen", "Pham", "Roth", "Suarez"],
}


class Rebooking(Environment):
    flights: dict[str, dict[str, Any]]
    bookings: dict[str, dict[str, str]]

    def reset(self, task: Task) -> None:
        self.flights = {flight["number"]: dict(flight) for flight in task.fields["flights"]}
        self.bookings = {}
        for passenger, flight in task.fields["booked"]:
            self._add(passenger, flight)

    def _add(self, passenger: str, flight: str) -> str:
        booking = f"BK{len(self.bookings) + 1:03d}"
        self.bookings[booking] = {"passenger": passenger, "flight": flight}
        return booking

    def _free(self, flight: str) -> int:
        taken = sum(one["flight"] == flight for one in self.bookings.values())
        return self.flights[flight]["seats"] - taken

    @tool
    def flights_to(self, city: str) -> list[dict[str, str | int]]:
        """Flights to a city: number, departure (HH:MM) and free seats."""
        return [
            {"number": number, "departs": flight["departs"], "free": self._free(number)}
            for number, flight in self.flights.items()
            if flight["city"] == city
        ]

    @tool
    def booking_of(self, passenger: str) -> dict[str, str]:
        """The booking of a passenger.

        Args:
            passenger: family name
        """
        for booking, one in self.bookings.items():
            if one["passenger"] == passenger:
                return {"booking": booking, **one}
        raise ToolFailure(f"{passenger} has no booking")

    @tool
    def cancel(self, booking: str) -> str:
        """Cancel a booking by its code."""
        if booking not in self.bookings:
            raise ToolFailure(f"there is no booking {booking}")
        del self.bookings[booking]
        return f"{booking} is cancelled"

    @tool
    def book(self, passenger: str, flight: str) -> str:
        """Book a seat for a passenger who has no booking, and return its code."""
        if flight not in self.flights:
            raise ToolFailure(f"there is no flight {flight}")
        if any(one["passenger"] == passenger for one in self.bookings.values()):
            raise ToolFailure(f"{passenger} has a booking already")
        if self._free(flight) <= 0:
            raise ToolFailure(f"flight {flight} is full")
        return self._add(passenger, flight)

    def final_state(self) -> dict[str, list[list[str]]]:
        return {"bookings": sorted([one["passenger"], one["flight"]] for one in self.bookings.values())}


scorer = state_difference("state")


def reward(trajectory: Trajectory) -> float:
    """1 for all passengers on their right flights, 0.3 where the one to move is right and others are not."""
    if not trajectory.final_state:
        return 0.0
    flights = dict(trajectory.final_state["bookings"])
    wanted = dict(trajectory.task.fields["state"]["bookings"])
    if flights.get(trajectory.task.fields["passenger"]) != wanted[trajectory.task.fields["passenger"]]:
        return 0.0
    return 1.0 if flights == wanted else 0.3


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 14) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"flights {split} {index}")
    city = rng.choice(CITIES[split])
    hours = sorted(rng.sample(range(6, 23), 4))
    flights = []
    for hour, number in zip(hours, rng.sample(range(100, 1000), 4), strict=True):
        prefix = "SK" if split == "train" else "AV"
        flights.append(
            {
                "number": f"{prefix}{number}",
                "city": city,
                "departs": f"{hour:02d}:{rng.randrange(0, 60, 5):02d}",
                "seats": 5,
            }
        )
    names = rng.sample(NAMES[split], rng.randint(3, 5))
    mover = names[-1] if rng.random() < 0.3 else rng.choice(names)
    old, full, best, _ = flights
    booked = [[name, old["number"] if name == mover else rng.choice(flights)["number"]] for name in names]
    taken = sum(flight == full["number"] for _, flight in booked)
    full["seats"] = taken + rng.choice((0, 1))
    target = best if full["seats"] == taken else full
    after = sorted([name, target["number"] if name == mover else flight] for name, flight in booked)
    shown = rng.sample(flights, 4)
    user = f"{mover} misses flight {old['number']} and wants to go to {city} after {old['departs']}."
    return Task(
        id=f"rebooking-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
        fields={"flights": shown, "booked": booked, "passenger": mover, "state": {"bookings": after}},
        seed=index,
    )
