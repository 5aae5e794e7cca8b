"""Booking desk of a hotel chain: guests cancel, extend and move their stays."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

GUESTS = [
    "A. Okafor",
    "B. Lindqvist",
    "C. Moreau",
    "D. Petrov",
    "E. Tanaka",
    "F. Haddad",
    "G. Novak",
    "H. Silva",
    "I. Byrne",
]
CITIES = ["Vienna", "Seville", "Tallinn", "Antwerp", "Bologna", "Gdansk"]
ROOMS = ["single", "double", "suite"]


FIRST_NUMBER = {"train": 1000, "validation": 4000, "held_out": 7000}
"""Of the requests of a split; each has a number of its own."""


class Desk(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.state.database.execute(
            "CREATE TABLE stays (id TEXT PRIMARY KEY, city TEXT, room TEXT, nights INTEGER, status TEXT)"
        )
        for row in task.fields["stays"]:
            self.state.database.execute("INSERT INTO stays VALUES (:id, :city, :room, :nights, 'booked')", row)

    @tool
    def get_booking(self, booking_id: str) -> dict[str, str | int]:
        """A booking: city, kind of room, number of nights and status.

        Args:
            booking_id: the seven digits of the booking
        """
        row = self.state.database.execute(
            "SELECT city, room, nights, status FROM stays WHERE id = ?", (booking_id,)
        ).fetchone()
        if row is None:
            raise ToolFailure(f"there is no booking {booking_id}")
        return dict(zip(("city", "room", "nights", "status"), row, strict=True))

    @tool
    def cancel_booking(self, booking_id: str) -> str:
        """Cancel a booking for good.

        Args:
            booking_id: the seven digits of the booking
        """
        self.get_booking(booking_id)
        self.state.database.execute("UPDATE stays SET status = 'cancelled' WHERE id = ?", (booking_id,))
        return f"booking {booking_id} is cancelled"

    @tool
    def change_nights(self, booking_id: str, nights: Annotated[int, Bounded(ge=1, le=21)]) -> str:
        """Change how many nights a stay has.

        Args:
            booking_id: the seven digits of the booking
            nights: nights in all
        """
        self.get_booking(booking_id)
        self.state.database.execute("UPDATE stays SET nights = ? WHERE id = ?", (nights, booking_id))
        return f"booking {booking_id} has {nights} nights"

    @tool
    def change_room(self, booking_id: str, room: str) -> str:
        """Move a booking to another kind of room.

        Args:
            booking_id: the seven digits of the booking
            room: single, double or suite
        """
        self.get_booking(booking_id)
        if room not in ROOMS:
            raise ToolFailure(f"there is no room of the kind {room}; there are {', '.join(ROOMS)}")
        self.state.database.execute("UPDATE stays SET room = ? WHERE id = ?", (room, booking_id))
        return f"booking {booking_id} is in a {room}"

    def final_state(self) -> dict[str, list[str | int]]:
        rows = self.state.database.execute("SELECT id, city, room, nights, status FROM stays ORDER BY id")
        return {row[0]: list(row[1:]) for row in rows}


def reward(trajectory: Trajectory) -> float:
    """1 for the wanted bookings; a try that left the bookings alone earns nothing."""
    return 1.0 if dict(trajectory.final_state or {}) == trajectory.task.fields["state"] else 0.0


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"hotel {split} {number}")
    stays = [
        {"id": str(rng.randrange(10**6, 10**7)), "city": city, "room": rng.choice(ROOMS), "nights": rng.randint(1, 9)}
        for city in rng.sample(CITIES, 4)
    ]
    stay, guest = rng.choice(stays), rng.choice(GUESTS)
    row = [stay["city"], stay["room"], stay["nights"], "booked"]
    match number % 4:
        case 0:
            text = f"This is {guest}. Please cancel my booking {stay['id']}."
            row[3] = "cancelled"
        case 1:
            row[2] = stay["nights"] + rng.randint(1, 5)
            text = f"Hello, {guest} here. Can you make booking {stay['id']} {row[2]} nights long?"
        case 2:
            text = (
                f"{guest} speaking. Something came up, so I have to cancel my stay in {stay['city']}. Please go ahead."
            )
            row[3] = "cancelled"
        case _:
            row[1] = rng.choice([room for room in ROOMS if room != stay["room"]])
            text = f"I am {guest}, and for booking {stay['id']} I would like a {row[1]} after all."
    state = {other["id"]: [other["city"], other["room"], other["nights"], "booked"] for other in stays} | {
        stay["id"]: row
    }
    text = f"[call {FIRST_NUMBER[split] + number}] {text}"
    system = "You work at the booking desk of a hotel chain. Do what the guest asks for with the tools, then confirm it in a sentence."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "system", "content": system}, {"role": "user", "content": text}),
        fields={"stays": stays, "booking": stay["id"], "state": state},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
