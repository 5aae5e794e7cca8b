"""A cinema: reserve seats next to each other."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

HALL = {"A": [None] * 8, "B": [None] * 8, "C": [None] * 8}


class Cinema(Environment):
    def reset(self, task):
        self.hall = dict(HALL)
        for row, seat in task.fields["sold"]:
            self.hall[row][seat - 1] = "sold"

    @tool
    def plan(self) -> str:
        """The plan of the hall, a line a row: . is free, x is taken. Seats are numbered from 1 on the left."""
        return "\n".join(
            row + " " + "".join("." if seat is None else "x" for seat in seats) for row, seats in self.hall.items()
        )

    @tool
    def reserve(self, row: str, first: int, num: int) -> str:
        """Reserve seats side by side.

        Args:
            row: A, B or C
            first: number of the leftmost seat
            num: how many seats
        """
        if row not in self.hall or first < 1 or num < 1 or first + num - 1 > 8:
            return "error: there are no such seats"
        seats = self.hall[row]
        if any(seat is not None for seat in seats[first - 1 : first - 1 + num]):
            return "error: one of the seats is taken"
        for index in range(first - 1, first - 1 + num):
            seats[index] = "ours"
        return f"reserved {row}{first} to {row}{first + num - 1}"

    def final_state(self):
        return {row: [i + 1 for i, seat in enumerate(seats) if seat == "ours"] for row, seats in self.hall.items()}


def _ours(trajectory):
    state = trajectory.final_state or {}
    return [(row, seat) for row in state for seat in state[row]]


def reward(trajectory):
    """1 for the right number of seats in the row asked for, side by side."""
    seats, fields = _ours(trajectory), trajectory.task.fields
    numbers = [seat for row, seat in seats if row == fields["row"]]
    if len(seats) != fields["num"] or len(numbers) != fields["num"]:
        return 0.0
    return 1.0 if numbers[-1] - numbers[0] == fields["num"] - 1 else 0.0


def scorer(trajectory):
    good = [t for t in trajectory.transitions if t["tool"] == "reserve" and str(t["result"]).startswith("reserved")]
    fields = trajectory.task.fields
    return float(
        len(good) == 1 and good[0]["arguments"]["row"] == fields["row"] and good[0]["arguments"]["num"] == fields["num"]
    )


def tasks_of(split, num):
    rng = random.Random("cinema:" + split)
    tasks = []
    while len(tasks) < num:
        row, wanted = rng.choice("ABC"), rng.choice([2, 3])
        sold = [[r, s] for r in "ABC" for s in range(1, 9) if rng.random() < 0.3]
        taken = {s for r, s in sold if r == row}
        if not any(all(s + k not in taken for k in range(wanted)) for s in range(1, 10 - wanted)):
            continue
        text = f"Reserve {wanted} seats side by side in row {row}, please."
        tasks.append(
            Task(
                id=f"cinema-{split}-{len(tasks)}",
                messages=({"role": "user", "content": text},),
                fields={"sold": sold, "row": row, "num": wanted},
            )
        )
    return tasks


def train_tasks():
    return tasks_of("train", 80)


def held_out_tasks():
    return tasks_of("held_out", 30)
