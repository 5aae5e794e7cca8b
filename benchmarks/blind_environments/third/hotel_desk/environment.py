"""The front desk of a small hotel: look up bookings, cancel them, move them to another room."""

import random

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Outcome, Task

GUESTS = [
    "Abara",
    "Bellini",
    "Castro",
    "Dubois",
    "Eriksen",
    "Fontaine",
    "Grieg",
    "Haas",
    "Ilves",
    "Jansen",
    "Kowal",
    "Lund",
]
SCHEMA = (
    "CREATE TABLE booking (id TEXT PRIMARY KEY, guest TEXT, night TEXT, room INTEGER, status TEXT DEFAULT 'active')"
)


class HotelDesk(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.db = self.state.database
        self.db.execute(SCHEMA)
        self.db.executemany("INSERT INTO booking (id, guest, night, room) VALUES (?, ?, ?, ?)", task.fields["bookings"])

    def _booking(self, booking_id):
        row = self.db.execute(
            "SELECT id, guest, night, room, status FROM booking WHERE id = ?", (booking_id,)
        ).fetchone()
        if row is None:
            raise ToolFailure(f"there is no booking {booking_id}")
        return row

    @tool
    def bookings_of(self, guest: str) -> list[dict[str, str]]:
        """All bookings of a guest, with night, room and status.

        Args:
            guest: family name, as the desk writes it
        """
        rows = self.db.execute("SELECT id, night, room, status FROM booking WHERE guest = ? ORDER BY night", (guest,))
        return [{"id": i, "night": n, "room": str(r), "status": s} for i, n, r, s in rows]

    @tool
    def cancel(self, booking_id: str) -> str:
        """Cancel one booking; the guest's other bookings stay as they are.

        Args:
            booking_id: for example B-104
        """
        _, guest, night, _, _ = self._booking(booking_id)
        self.db.execute("UPDATE booking SET status = 'cancelled' WHERE guest = ?", (guest,))
        return f"{booking_id} on {night} is cancelled"

    @tool
    def move(self, booking_id: str, room: int) -> str:
        """Move a booking to another room.

        Args:
            booking_id: for example B-104
            room: number of the new room
        """
        self._booking(booking_id)
        self.db.execute("UPDATE booking SET room = ? WHERE id = ?", (room, booking_id))
        return f"{booking_id} is in room {room} now"

    def final_state(self):
        return {i: f"{r} {s}" for i, r, s in self.db.execute("SELECT id, room, status FROM booking")}


scorer = state_difference("after")


def reward(trajectory):
    if trajectory.outcome is not Outcome.FINISHED:
        return 0.0
    return 1.0 if trajectory.final_state == dict(trajectory.task.fields["after"]) else 0.0


def _make(split, number, rng):
    guest, other = rng.sample(GUESTS, 2)
    count = rng.choice([1, 2, 2, 3])
    ids = [f"B-{n}" for n in rng.sample(range(100, 1000), count + 1)]
    nights = [f"2025-0{rng.randint(2, 9)}-{day}" for day in rng.sample(range(10, 29), count + 1)]
    rooms = rng.sample(range(101, 140), count + 2)
    bookings = [[i, guest, n, r] for i, n, r in zip(ids[:count], nights, rooms)]
    bookings.append([ids[-1], other, nights[-1], rooms[count]])
    target = rng.choice(bookings[:count])
    after = {i: f"{r} active" for i, _, _, r in bookings}
    if number % 2:
        request = f"Cancel the booking of {guest} for the night of {target[2]}."
        after[target[0]] = f"{target[3]} cancelled"
    else:
        request = f"Move the booking of {guest} for the night of {target[2]} to room {rooms[-1]}."
        after[target[0]] = f"{rooms[-1]} active"
    prompt = request + " Change nothing else. Say 'done' when it is done."
    return Task(
        id=f"{split}-{number}",
        seed=number,
        messages=({"role": "user", "content": prompt},),
        fields={"bookings": bookings, "after": after, "guest": guest, "target": target[0], "room": rooms[-1]},
    )


def train_tasks():
    rng = random.Random(11)
    return [_make("train", n, rng) for n in range(36)]


def held_out_tasks():
    rng = random.Random(12)
    return [_make("held", n, rng) for n in range(14)]
