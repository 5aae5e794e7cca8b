"""A help desk: which team takes a ticket, how soon, and is it a duplicate of an open one?"""

import asyncio
import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
Sort a ticket.
1. asset (the device's tag): its owner's team, `network`, `desktop` or `print`, and the day until which it is leased.
2. open_tickets (the tag): numbers of open tickets about the device. If there are any, `duplicate_of` is the smallest, else null.
3. contacts (the tag): people who depend on it.
`team` is the owner's team. `days` is 1 if three or more people depend on it, else 3; and 5 in any case when the lease ends before
the day of the ticket.
Answer: <final_output>{"team":"","days":0,"duplicate_of":null}</final_output>"""

TEAMS = ("network", "desktop", "print")
PEOPLE = ("Ana", "Bo", "Cem", "Dora", "Elif", "Finn", "Gus", "Hana", "Igor", "June", "Kai", "Lou")


class HelpDesk(Environment):
    """Looks into two old systems side by side."""

    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None

    def reset(self, task: Task) -> None:
        self.tag, self.device = task.fields["tag"], task.fields["device"]
        self.pool = ThreadPoolExecutor(max_workers=2)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True)

    def _known(self, tag: str) -> None:
        if tag != self.tag:
            raise LookupError(f"no device has the tag {tag}")

    @tool
    async def asset(self, tag: str) -> dict[str, str]:
        """Owner and lease of a device."""
        self._known(tag)
        loop = asyncio.get_running_loop()
        owner, lease = await asyncio.gather(
            loop.run_in_executor(self.pool, self.device.get, "team"),
            loop.run_in_executor(self.pool, self.device.get, "lease"),
        )
        return {"team": owner, "leased_until": lease}

    @tool
    def open_tickets(self, tag: str) -> list[int] | str:
        """Open tickets about a device."""
        self._known(tag)
        return sorted(set(self.device["tickets"])) or "none"

    @tool
    def contacts(self, tag: str) -> list[str]:
        """People who depend on a device."""
        self._known(tag)
        return sorted({name.strip() for name in self.device["people"].split(",")})

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call(name, tag=task.fields["tag"]) for name in ("asset", "open_tickets", "contacts")]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


reward = json_fields(format_weight=0.1)
scorer = json_exact()


def train_tasks() -> list[Task]:
    return _tasks("train", "ABCDE", 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", "FG", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", "HJK", 18)


def _tasks(split: str, letters: str, num: int) -> list[Task]:
    rng = random.Random(f"tickets {split}")
    return [
        _task(f"{split}-{index}", rng, f"{rng.choice(letters)}{rng.randint(1000, 9999)}", TEAMS[index % 3])
        for index in range(num)
    ]


def _task(name: str, rng: random.Random, tag: str, team: str) -> Task:
    day = date(2024, 3, 1) + timedelta(days=rng.randint(0, 400))
    lease = day + timedelta(days=rng.randint(-200, 500))
    people, tickets = rng.sample(PEOPLE, rng.randint(1, 5)), rng.sample(range(100, 999), rng.choice((0, 1, 3)))
    device = {"team": team, "lease": lease.isoformat(), "people": ", ".join(people), "tickets": tickets + tickets[:1]}
    days = 5 if lease < day else (1 if len(people) >= 3 else 3)
    what = rng.choice(("blinks and beeps", "is slow", "lost its settings", "asks for a password", "shows a blank page"))
    text = f"{day.isoformat()}, room {rng.randint(1, 60)}: device {tag} {what}."
    return Task(
        id=name,
        messages=({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text}),
        fields={
            "tag": tag,
            "device": device,
            "answer": {"team": team, "days": days, "duplicate_of": min(tickets, default=None)},
        },
    )
