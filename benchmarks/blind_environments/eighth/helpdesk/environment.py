"""Help desk: give the oldest open ticket of a queue to a colleague."""

from __future__ import annotations

import random
from typing import Literal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

QUEUES = ["printers", "accounts", "network", "phones"]
PEOPLE = ["amara", "birk", "chloe", "dmitri", "esra", "fadil"]
TEAMS = ["sales", "the night shift", "payroll", "the lab", "legal"]
SUBJECTS = ["does not start", "password lost", "very slow", "noise on the line", "paper jam", "no signal", "new badge"]


class HelpDesk(Environment):
    """The board of tickets."""

    board: dict[str, dict] = {}

    def reset(self, task: Task) -> None:
        self.board.update({ticket: dict(entry) for ticket, entry in task.fields["tickets"].items()})

    @tool
    def list_tickets(
        self, queue: Literal["printers", "accounts", "network", "phones"], status: Literal["open", "closed"] = "open"
    ) -> list[dict[str, str]]:
        """Tickets of a queue: id, day on which it came in, and subject.

        Args:
            queue: the queue
            status: open tickets, or closed ones
        """
        return [
            {"ticket": ticket, "day": entry["day"], "subject": entry["subject"]}
            for ticket, entry in self.board.items()
            if entry["queue"] == queue and entry["status"] == status
        ]

    @tool
    def assign(self, ticket: str, person: str) -> str:
        """Give a ticket to a colleague.

        Args:
            ticket: id of the ticket
            person: first name
        """
        if ticket not in self.board:
            raise ToolFailure(f"there is no ticket {ticket}")
        if person not in PEOPLE:
            raise ToolFailure(f"nobody is called {person}")
        self.board[ticket]["person"] = person
        return f"{ticket} is with {person}"

    def final_state(self) -> dict[str, str | None]:
        return {ticket: entry["person"] for ticket, entry in self.board.items()}


def reward(trajectory: Trajectory) -> float:
    """1 when only the right ticket changed hands."""
    return float(trajectory.final_state == trajectory.task.fields["state"])


def scorer(trajectory: Trajectory) -> float:
    """1 when the oldest open ticket of the queue was given to the colleague, and no call gave away anything else."""
    fields = trajectory.task.fields
    waiting = [
        (entry["day"], ticket)
        for ticket, entry in fields["tickets"].items()
        if entry["queue"] == fields["queue"] and entry["status"] == "open"
    ]
    given = [step["arguments"] for step in trajectory.transitions if step["tool"] == "assign" and step["error"] is None]
    return float(bool(given) and all(one == {"ticket": min(waiting)[1], "person": fields["person"]} for one in given))


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"helpdesk/{split}/{number}")
    tickets = {}
    for day, key in zip(rng.sample(range(1, 29), 14), rng.sample(range(10_000, 99_999), 14), strict=True):
        tickets[f"T{key}"] = {
            "queue": rng.choice(QUEUES), "day": f"2025-01-{day:02}", "subject": rng.choice(SUBJECTS),
            "status": rng.choice(["open", "open", "closed"]), "person": None,
        }  # fmt: skip
    waiting = [(entry["day"], ticket) for ticket, entry in tickets.items() if entry["status"] == "open"]
    queue = tickets[rng.choice(waiting)[1]]["queue"]
    oldest = min((day, ticket) for day, ticket in waiting if tickets[ticket]["queue"] == queue)[1]
    person = rng.choice(PEOPLE)
    prompt = (
        f"Desk {rng.randint(100, 999)} here, for {rng.choice(TEAMS)}: please give the oldest open ticket in {queue} to {person}, "
        "and tell me its number."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={
            "tickets": tickets, "queue": queue, "person": person,
            "state": dict.fromkeys(tickets) | {oldest: person},
        },
        seed=number,
    )  # fmt: skip


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
