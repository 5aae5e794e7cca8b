"""Calendar assistant: when does a meeting start, by the clock of the office that hosts it?"""

from __future__ import annotations

import random
import re
from datetime import datetime, timedelta

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

OFFICES = {
    "Seattle": ("America/Los_Angeles", -8), "Denver": ("America/Denver", -7), "Toronto": ("America/Toronto", -5),
    "Accra": ("Africa/Accra", 0), "Nairobi": ("Africa/Nairobi", 3), "Dubai": ("Asia/Dubai", 4),
    "Osaka": ("Asia/Tokyo", 9), "Brisbane": ("Australia/Brisbane", 10),
}  # fmt: skip
"""City: name of the time zone, and its hours from UTC (in winter)."""
TOPICS = ["Budget review", "Hiring panel", "Design critique", "Incident review", "Vendor call", "Roadmap", "Safety drill",
          "Payroll cutover", "Lab tour", "Board preparation"]  # fmt: skip


class Calendar(Environment):
    """The shared calendar. Starts are kept in UTC."""

    def reset(self, task: Task) -> None:
        self._events = {event["id"]: event for event in task.fields["events"]}

    @tool
    def search_events(self, text: str) -> list[dict[str, str]]:
        """Events whose title contains a text: id, title and hosting office.

        Args:
            text: part of the title; upper and lower case are the same
        """
        return [
            {"id": event["id"], "title": event["title"], "office": event["office"]}
            for event in self._events.values()
            if text.lower() in event["title"].lower()
        ]

    @tool
    def get_event(self, event_id: str) -> dict[str, str]:
        """One event. Start and end are by the local clock of the hosting office, whose time zone is named.

        Args:
            event_id: id of the event
        """
        if event_id not in self._events:
            raise ToolFailure(f"there is no event {event_id}")
        event = self._events[event_id]
        zone, hours = OFFICES[event["office"]]
        start = datetime.fromisoformat(event["start_utc"])
        end = start + timedelta(minutes=event["minutes"])
        return {
            "title": event["title"],
            "start": f"{start:%Y-%m-%d %H:%M} ({zone})",
            "end": f"{end:%Y-%m-%d %H:%M} ({zone})",
        }


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the right time, 0.1 for a time at all."""
    said = tagged(trajectory)
    if said is None or not re.fullmatch(r"\d\d:\d\d", said):
        return 0.0
    return 1.0 if said == trajectory.task.fields["answer"] else 0.1


scorer = exact_match("answer")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"calendar/{split}/{number}")
    events = []
    for topic in rng.sample(TOPICS, 6):
        start = datetime(
            2026, rng.choice([1, 2, 12]), rng.randint(3, 27), rng.randint(0, 23), rng.choice([0, 15, 30, 45])
        )
        events.append(
            {
                "id": f"ev-{rng.randrange(16**5):05x}", "title": f"{topic} {rng.choice('ABCD')}{rng.randint(1, 9)}",
                "office": rng.choice(list(OFFICES)), "start_utc": start.isoformat(), "minutes": rng.choice([30, 45, 60]),
            }
        )  # fmt: skip
    event = rng.choice(events)
    local = datetime.fromisoformat(event["start_utc"]) + timedelta(hours=OFFICES[event["office"]][1])
    prompt = (
        f'At what time does "{event["title"]}" start, by the clock on the wall of the office that hosts it ({event["office"]})? '
        "End with the time as in <answer>09:30</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={"events": events, "event": event["id"], "answer": f"{local:%H:%M}"},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
