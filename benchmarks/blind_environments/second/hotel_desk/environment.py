"""A small hotel at night: one guest gives up a booking, and another takes the room for the same nights."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

ROOMS = (1, 2, 3)
SCHEMA = """
CREATE TABLE bookings (id TEXT PRIMARY KEY, guest TEXT, room INTEGER, first_night INTEGER, nights INTEGER);
CREATE TABLE occupied (room INTEGER, night INTEGER, PRIMARY KEY (room, night));
"""
SYSTEM = """You are the night clerk of a small hotel. Nights are numbered by the day of the month.
Look at the bookings, cancel what a guest gives up, and book what is asked for. Change nothing else.
When everything is done, answer with the word done."""
GUESTS = {
    "train": "Okafor Lindgren Moreau Tanaka Silva Novak Haddad Quinn Petrov Iyer Bauer Costa".split(),
    "held_out": "Fontaine Achebe Larsen Duarte Kimura Weiss Orlov Nasser".split(),
}


class HotelDesk(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        database = self.state.database
        database.executescript(SCHEMA)
        for booking, guest, room, first, nights in task.fields["bookings"]:
            self._insert(booking, guest, room, first, nights)

    def _insert(self, booking: str, guest: str, room: int, first: int, nights: int) -> None:
        database = self.state.database
        database.execute("INSERT INTO bookings VALUES (?, ?, ?, ?, ?)", (booking, guest, room, first, nights))
        database.executemany("INSERT INTO occupied VALUES (?, ?)", [(room, first + n) for n in range(nights)])

    @tool
    def bookings(self) -> list[dict]:
        """All bookings: id, guest, room, first night and number of nights."""
        rows = self.state.database.execute("SELECT * FROM bookings ORDER BY room, first_night")
        names = ("id", "guest", "room", "first_night", "nights")
        return [dict(zip(names, row, strict=True)) for row in rows]

    @tool
    def cancel(self, booking: str) -> str:
        """Cancel a booking. Its room is free again for its nights.

        Args:
            booking: id, as bookings() gives it
        """
        database = self.state.database
        row = database.execute("SELECT room, first_night FROM bookings WHERE id = ?", (booking,)).fetchone()
        if row is None:
            raise ToolFailure(f"there is no booking {booking}")
        database.execute("DELETE FROM occupied WHERE room = ? AND night = ?", row)
        database.execute("DELETE FROM bookings WHERE id = ?", (booking,))
        return f"{booking} is cancelled"

    @tool
    def book(
        self,
        guest: Annotated[str, Bounded(max_length=40)],
        room: int,
        first_night: Annotated[int, Bounded(ge=1, le=31)],
        nights: Annotated[int, Bounded(ge=1, le=7)],
    ) -> str:
        """Book a room for a guest. Refused when the room is taken in one of the nights.

        Args:
            guest: family name
            room: number of the room
            first_night: day of the month
            nights: number of nights
        """
        database = self.state.database
        if room not in ROOMS:
            raise ToolFailure(f"there is no room {room}; there are 1, 2 and 3")
        taken = database.execute(
            "SELECT min(night) FROM occupied WHERE room = ? AND night BETWEEN ? AND ?",
            (room, first_night, first_night + nights - 1),
        ).fetchone()[0]
        if taken is not None:
            raise ToolFailure(f"room {room} is taken in night {taken}")
        booking = self.state.new_id("booking")
        self._insert(booking, guest, room, first_night, nights)
        return f"{booking}: room {room} for {guest}"

    def final_state(self):
        rows = self.state.database.execute(
            "SELECT guest, room, first_night, nights FROM bookings ORDER BY room, first_night"
        )
        return {"bookings": [list(row) for row in rows]}


scorer = state_difference("state")


def reward(trajectory: Trajectory) -> float:
    """1 for exactly the wanted bookings."""
    if trajectory.final_state is None:
        return 0.0
    wanted = sorted(map(tuple, trajectory.task.fields["state"]["bookings"]))
    return float(sorted(map(tuple, trajectory.final_state["bookings"])) == wanted)


def train_tasks(num: int = 36) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 14) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"hotel {split} {index}")
    *guests, incoming = rng.sample(GUESTS[split], 6)
    bookings = []
    for number, guest in enumerate(guests):
        room = number % 3 + 1
        first = rng.randint(1, 6) + 12 * (number // 3)
        bookings.append([f"B{rng.randint(100, 999)}-{number}", guest, room, first, rng.choice((1, 2, 3))])
    given_up = rng.choice(bookings)
    _, guest, room, first, nights = given_up
    after = [booking[1:] for booking in bookings if booking is not given_up] + [[incoming, room, first, nights]]
    slip = index + (100 if split == "train" else 500)
    text = f"Slip {slip}: {guest} gives up their booking. Give the room to {incoming}, for the same nights."
    return Task(
        id=f"hotel-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": text}),
        fields={"bookings": bookings, "state": {"bookings": sorted(after, key=lambda one: (one[1], one[2]))}},
        seed=index,
    )
