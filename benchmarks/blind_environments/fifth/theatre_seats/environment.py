"""The box office of a theatre: book, move and cancel seats by the customer's wish."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

ROWS = "ABCDEF"
PLAYS = ["Hamlet", "The Seagull", "Antigone", "Tartuffe", "Faust", "Peer Gynt", "Lysistrata", "Volpone"]


class BoxOffice(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.house: dict[str, str] = dict(task.fields["taken"])  # seat -> booking
        self.bookings: dict[str, list[str]] = {}
        for seat, booking in self.house.items():
            self.bookings.setdefault(booking, []).append(seat)

    @tool
    def free_seats(self, row: str) -> list[str]:
        """Free seats of a row.

        Args:
            row: A (front) to F (back)
        """
        if row not in tuple(ROWS):
            raise ToolFailure(f"There is no row {row}; rows are A to F.")
        return [f"{row}{n}" for n in range(1, 9) if f"{row}{n}" not in self.house]

    @tool
    def book(self, seats: Annotated[list[str], Bounded(max_items=8)]) -> str:
        """Book free seats together; gives the number of the booking.

        Args:
            seats: such as ["B3", "B4"]
        """
        for seat in seats:
            if seat in self.house:
                raise ToolFailure(f"{seat} is taken.")
            if len(seat) != 2 or seat[0] not in ROWS or seat[1] not in "12345678":
                raise ToolFailure(f"{seat} is no seat.")
        if not seats or len(set(seats)) < len(seats):
            raise ToolFailure("Name each seat once.")
        number = self.state.new_id("booking")
        self.bookings[number] = list(seats)
        self.house.update(dict.fromkeys(seats, number))
        return number

    @tool
    def cancel(self, booking: str) -> str:
        """Cancel a booking; its seats are free again.

        Args:
            booking: its number
        """
        if booking not in self.bookings:
            raise ToolFailure(f"There is no booking {booking}.")
        self.bookings.pop(booking)
        return "cancelled"

    def final_state(self):
        return {"taken": sorted(self.house), "bookings": sorted(self.bookings)}


def _wanted(trajectory: Trajectory) -> set[str]:
    fields = trajectory.task.fields
    kept = {seat for seat, booking in fields["taken"].items() if booking != fields["old"]}
    return kept | set(fields["wish"])


def reward(trajectory: Trajectory) -> float:
    """1 when exactly the seats that should be taken are taken."""
    return float(set(trajectory.final_state["taken"]) == _wanted(trajectory))


def scorer(trajectory: Trajectory) -> float:
    taken = trajectory.final_state["taken"]
    gone = trajectory.task.fields["old"] not in trajectory.final_state["bookings"]
    return 1.0 if gone and len(taken) == len(_wanted(trajectory)) and _wanted(trajectory).issuperset(taken) else 0.0


def _tasks(split: str, plays: list[str], num: int) -> list[Task]:
    rng = random.Random(f"{split} of the box office")
    tasks = []
    for index in range(num):
        row, other = rng.sample(ROWS, 2)
        start = rng.randint(1, 5)
        taken = {f"{row}{start + n}": "K100" for n in range(3)} | {f"{other}{n}": "K200" for n in range(1, 3)}
        wish = [f"{row}{start + n}" for n in range(1, 3)]
        text = (
            f"{rng.choice(plays)} tonight: booking K100 is one person fewer. Cancel it and book {wish[0]} and {wish[1]} instead. "
            "Reply when it is done."
        )
        fields = {"taken": taken, "old": "K100", "wish": wish}
        tasks.append(
            Task(id=f"{split}-{index}", seed=index, messages=({"role": "user", "content": text},), fields=fields)
        )
    return tasks


def train_tasks() -> list[Task]:
    return _tasks("train", PLAYS[:4], 40)


def validation_tasks() -> list[Task]:
    return _tasks("validation", PLAYS[4:6], 12)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", PLAYS[6:], 12)
