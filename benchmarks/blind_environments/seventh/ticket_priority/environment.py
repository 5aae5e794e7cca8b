"""Service desk: the priority of a ticket, by the matrix of impact and urgency."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

LEVELS = ["low", "medium", "high"]
SYSTEMS = ["mail", "payroll", "shop", "intranet", "printers", "telephony", "warehouse", "wifi"]
INSTRUCTIONS = (
    "You rate tickets. `ticket` shows the system and how many people it concerns, `system` how urgent faults of a system are. Impact is "
    "low for fewer than 10 people, medium for 10 to 99, high from 100. `matrix` shows the priority for each impact and "
    "urgency. Answer with the priority: <final_output>P3</final_output>"
)


class ServiceDesk(Environment):
    def reset(self, task: Task) -> None:
        self.record, self.urgencies, self.rows = task.fields["ticket"], task.fields["urgencies"], task.fields["matrix"]

    @tool
    def ticket(self, number: int) -> dict[str, str | int] | str:
        """What is known of a ticket: system, people concerned, when it was opened."""
        if number != self.record["number"]:
            return "no such ticket"
        return {key: value for key, value in self.record.items() if value is not None}

    @tool
    def system(self, name: str) -> str:
        """How urgent faults of a system are: low, medium or high."""
        return self.urgencies.get(name, "no such system")

    @tool
    def matrix(self) -> dict[str, dict[str, str]]:
        """The priorities: by impact, then by urgency."""
        return self.rows


def reward(trajectory: Trajectory) -> float:
    """1 for the right priority."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    rated = re.findall(r"<final_output>\s*(.*?)\s*</final_output>", text)
    if text.count("<final_output>") != 1:
        return 0.0
    return float(last["role"] == "assistant" and rated == [trajectory.task.fields["ticket"]["rated"]])


scorer = exact_match("final_output", "answer")


def train_tasks() -> list[Task]:
    return _tasks()[:54]


def held_out_tasks() -> list[Task]:
    return _tasks()[54:]


def _tasks() -> list[Task]:
    rng = random.Random("tickets")
    return [_task(number, rng) for number in rng.sample(range(4000, 9000), 70)]


def _task(number: int, rng: random.Random) -> Task:
    urgencies = {name: rng.choice(LEVELS) for name in SYSTEMS}
    priorities = rng.sample([f"P{rank}" for rank in range(1, 10)], 9)
    matrix = {
        impact: dict(zip(LEVELS, priorities[3 * row : 3 * row + 3], strict=True)) for row, impact in enumerate(LEVELS)
    }
    people = rng.choice((rng.randint(1, 9), rng.randint(10, 99), rng.randint(100, 900)))
    impact = LEVELS[(people >= 10) + (people >= 100)]
    name = rng.choice(SYSTEMS)
    rated = matrix[impact][urgencies[name]]
    ticket = {
        "number": number,
        "system": name,
        "people": people,
        "opened": f"{rng.randint(7, 18):02}:{rng.randint(0, 59):02}",
    }
    return Task(
        id=f"ticket-{number}",
        messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": f"Rate ticket {number}."}),
        fields={"ticket": {**ticket, "rated": rated}, "urgencies": urgencies, "matrix": matrix, "answer": rated},
    )
