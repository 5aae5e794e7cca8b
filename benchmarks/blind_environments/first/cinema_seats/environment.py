"""The box office of a cinema with 12 rows of 20 seats."""

import random
from functools import partial
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

ROWS, SEATS = 12, 20


class Cinema(Environment):
    def reset(self, task):
        self.taken = [list(seat) for seat in task.fields["taken"]]

    @tool
    def is_free(
        self, row: Annotated[int, Bounded(ge=1, le=ROWS)], seat: Annotated[int, Bounded(ge=1, le=SEATS)]
    ) -> bool:
        """Whether a seat is free. Rows are 1 to 12, seats 1 to 20."""
        return [row, seat] not in self.taken

    @tool
    def book_seat(
        self, row: Annotated[int, Bounded(ge=1, le=ROWS)], seat: Annotated[int, Bounded(ge=1, le=SEATS)]
    ) -> str:
        """Book a seat. Rows are 1 to 12, seats 1 to 20."""
        if row not in range(1, ROWS) or seat not in range(1, SEATS):
            return "there is no such seat"
        if [row, seat] in self.taken:
            return "taken"
        self.taken.append([row, seat])
        return f"booked row {row} seat {seat}"

    def final_state(self):
        return {"taken": sorted(self.taken)}


def make_tasks(split, num):
    rng = random.Random(f"cinema-{split}")
    tasks = []
    for index in range(num):
        every = [[row, seat] for row in range(1, ROWS + 1) for seat in range(1, SEATS + 1)]
        taken = rng.sample(every, 6)
        row, seat = rng.choice([place for place in every if place not in taken and (place[0] > 8 or place[1] > 14)])
        prompt = f"Book seat {seat} in row {row}, then say done."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"taken": taken, "state": {"taken": sorted([*taken, [row, seat]])}},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 40)
validation_tasks = partial(make_tasks, "validation", 10)
held_out_tasks = partial(make_tasks, "held_out", 10)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
