"""A desk with SQLite: look bookings up, then change or cancel. The clerk reports in the end what it did, in words of its own."""

import random

from sparring.environments import StatefulEnvironment, answer, tool, tool_call
from sparring.scorers import state_difference
from sparring.types import Task

NAMES = ("Abe", "Bea", "Cleo", "Dora", "Egon", "Fay", "Gus", "Hera", "Ivo", "June")


class Seats(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        database = self.state.database
        database.execute("CREATE TABLE bookings (id TEXT PRIMARY KEY, name TEXT, seat INTEGER, paid INTEGER)")
        database.execute("CREATE TABLE log (line TEXT)")
        database.executemany("INSERT INTO bookings VALUES (:id, :name, :seat, :paid)", task.fields["bookings"])

    @tool
    def find(self, name: str) -> list[dict]:
        """The bookings of a customer."""
        return self._rows("SELECT * FROM bookings WHERE name = ? ORDER BY id", name)

    @tool
    def move(self, booking: str, seat: int) -> str:
        """Give a booking another seat."""
        if self._rows("SELECT id FROM bookings WHERE seat = ?", seat):
            raise ValueError(f"seat {seat} is taken")
        return self._done("UPDATE bookings SET seat = ? WHERE id = ?", seat, booking)

    @tool
    def cancel(self, booking: str) -> str:
        """Cancel a booking."""
        return self._done("DELETE FROM bookings WHERE id = ?", booking)

    def _done(self, change, *values):
        if self.state.database.execute(change, values).rowcount == 0:
            raise ValueError(f"there is no booking {values[-1]}")
        self.state.database.execute("INSERT INTO log VALUES (?)", (f"{self.state.clock.now()} {change} {values}",))
        return "done"

    def _rows(self, query, *values):
        cursor = self.state.database.execute(query, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def final_state(self):
        return {
            "bookings": self._rows("SELECT id, name, seat, paid FROM bookings ORDER BY id"),
            "log": [row["line"] for row in self._rows("SELECT line FROM log")],
        }

    def demonstrate(self, task):
        fields = task.fields
        look = tool_call("find", name=fields["name"])
        if fields["seat"] is None:
            return [look, tool_call("cancel", booking=fields["booking"]), answer(f"{fields['name']}, it is cancelled.")]
        change = tool_call("move", booking=fields["booking"], seat=fields["seat"])
        return [look, change, answer(f"{fields['name']}, your seat is {fields['seat']} now.")]


def tasks(split, num):
    rng = random.Random(split)
    return [one(f"{split}-{index}", rng) for index in range(num)]


def one(task_id, rng):
    names, seats = rng.sample(NAMES, 4), rng.sample(range(10, 100), 5)
    bookings = [
        {"id": f"B{rng.randint(100, 999)}-{index}", "name": name, "seat": seat, "paid": rng.randint(0, 1)}
        for index, (name, seat) in enumerate(zip(names, seats, strict=False))
    ]
    bookings.sort(key=lambda row: row["id"])
    chosen, seat = rng.choice(bookings), rng.choice((None, seats[-1]))
    wish = "wants to cancel" if seat is None else f"wants seat {seat}"
    after = [
        {**row, "seat": seat} if row is chosen else row for row in bookings if row is not chosen or seat is not None
    ]
    return Task(
        id=task_id,
        messages=({"role": "user", "content": f"The customer {chosen['name']} {wish}."},),
        fields={
            "bookings": bookings,
            "name": chosen["name"],
            "booking": chosen["id"],
            "seat": seat,
            "after": {"bookings": after},
        },
    )


def train_tasks():
    return tasks("train", 40)


def held_out_tasks():
    return tasks("held_out", 10)


def reward(trajectory):
    return float(trajectory.final_state["bookings"] == trajectory.task.fields["after"]["bookings"])


scorer = state_difference("after", ignored=("log",))
