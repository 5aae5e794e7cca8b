"""A help desk: find a ticket, set its status, hand it to somebody."""

import random
from functools import partial
from typing import Literal

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

SUBJECTS = ["printer jams", "no sound", "password reset", "slow laptop", "vpn drops", "broken chair", "mail bounces"]
OWNERS = ["ada", "bo", "cleo", "dan"]


class TicketDesk(Environment):
    def reset(self, task):
        self.tickets = [dict(ticket) for ticket in task.fields["tickets"]]

    def queue(self):
        return sorted(self.tickets, key=lambda ticket: (ticket["priority"], ticket["id"]))

    @tool
    def list_tickets(self) -> list:
        """All tickets, the most urgent first."""
        return self.queue()

    @tool
    def get_ticket(self, ticket_id: int) -> dict:
        """One ticket with its status, owner and priority."""
        for ticket in self.tickets:
            if ticket["id"] == ticket_id:
                return ticket
        return {"error": "no such ticket"}

    @tool
    def set_status(self, ticket_id: int, status: Literal["open", "waiting", "closed"]) -> dict:
        """Set the status of a ticket."""
        ids = [ticket["id"] for ticket in self.queue()]
        if ticket_id not in ids:
            return {"error": "no such ticket"}
        self.tickets[ids.index(ticket_id)]["status"] = status
        return {"id": ticket_id, "status": status}

    @tool
    def assign(self, ticket_id: int, owner: str) -> dict:
        """Hand a ticket to somebody."""
        for ticket in self.tickets:
            if ticket["id"] == ticket_id:
                ticket["owner"] = owner
                return {"id": ticket_id, "owner": owner}
        return {"error": "no such ticket"}

    def final_state(self):
        return {str(ticket["id"]): [ticket["status"], ticket["owner"]] for ticket in self.tickets}


def make_tasks(split, num):
    rng = random.Random(f"tickets {split}")
    tasks = []
    for index in range(num):
        tickets = [
            {
                "id": number,
                "subject": subject,
                "status": "open",
                "owner": rng.choice(OWNERS),
                "priority": rng.randint(1, 5),
            }
            for number, subject in zip(sorted(rng.sample(range(100, 1000), 5)), rng.sample(SUBJECTS, 5), strict=True)
        ]
        wanted, status, owner = rng.choice(tickets), rng.choice(["waiting", "closed"]), rng.choice(OWNERS)
        state = {str(ticket["id"]): [ticket["status"], ticket["owner"]] for ticket in tickets}
        state[str(wanted["id"])] = [status, owner]
        prompt = f"Set the ticket about '{wanted['subject']}' to {status} and assign it to {owner}. Then say done."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"tickets": tickets, "state": state},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 30)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    expected, found = trajectory.task.fields["state"], trajectory.final_state or {}
    return 1.0 if found == expected else 0.0


scorer = state_difference("state")
