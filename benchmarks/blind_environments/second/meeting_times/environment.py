"""Meetings of an international office: invitations are kept in UTC, agendas are shown in local time."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Json, Task

ZONES = {
    "Berlin": ZoneInfo("Europe/Berlin"),
    "New York": ZoneInfo("America/New_York"),
    "London": ZoneInfo("Europe/London"),
}
HOURS_FROM_UTC = {"Berlin": 1, "New York": -5, "London": 0}
SYSTEM = """You are an assistant of an international office. Answer when the meeting begins by the clocks of the colleague's city on that
day, with summer time where it applies, and the name of the room:
<final_output>{"begins":"13:05","room":""}</final_output>"""
TOPICS = ["budget", "hiring", "launch", "security", "roadmap", "pricing", "training", "audit"]
PEOPLE = {
    "train": "Ana Bilal Chen Dora Emil Faye Goran Hana".split(),
    "held_out": "Ines Jonas Kofi Lena Milo Nadia".split(),
}
ROOMS = {"train": "Oak Elm Ash Fir Yew Lime".split(), "held_out": "Birch Maple Cedar Rowan Alder".split()}


class Agendas(Environment):
    def reset(self, task: Task) -> None:
        self.city: str = task.fields["city"]
        self.person: str = task.fields["person"]
        self.meetings: list[dict[str, Json]] = task.fields["meetings"]

    @tool
    def colleague(self, name: str) -> dict[str, str]:
        """The city that a colleague works in."""
        if name != self.person:
            raise ToolFailure(f"no colleague is called {name}")
        return {"name": name, "city": self.city}

    @tool
    def agenda(self, name: str) -> list[dict[str, str]]:
        """A colleague's meetings: topic, and begin by the local time of the colleague's city."""
        if name != self.person:
            raise ToolFailure(f"no colleague is called {name}")
        shift = timedelta(hours=HOURS_FROM_UTC[self.city])
        return [
            {"topic": one["topic"], "begins": f"{datetime.fromisoformat(one['utc']) + shift:%Y-%m-%d %H:%M}"}
            for one in self.meetings
        ]

    @tool
    def invitation(
        self, topic: Literal["budget", "hiring", "launch", "security", "roadmap", "pricing", "training", "audit"]
    ) -> dict[str, str]:
        """The invitation to a meeting, with its begin in UTC and the room."""
        for one in self.meetings:
            if one["topic"] == topic:
                return {"topic": topic, "begins_utc": one["utc"].replace("T", " ")[:16], "room": one["room"]}
        raise ToolFailure(f"there is no meeting about {topic}")


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 16) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"agenda-{split}-{index}")
    city, person = rng.choice(sorted(ZONES)), rng.choice(PEOPLE[split])
    day = date(2025, 1, 2) + timedelta(days=rng.randrange(360))
    topics = rng.sample(TOPICS, 4)
    meetings = []
    for topic, hour in zip(topics, sorted(rng.sample(range(9, 18), 4)), strict=True):
        local = datetime.combine(day, time(hour, rng.randrange(0, 60, 5)), tzinfo=ZONES[city])
        begins = local.astimezone(UTC).replace(tzinfo=None)
        meetings.append(
            {"topic": topic, "utc": begins.isoformat(), "room": rng.choice(ROOMS[split]), "local": f"{local:%H:%M}"}
        )
    asked = rng.choice(meetings)
    user = f"When does {person}'s meeting about {asked['topic']} begin on {day}, by {person}'s local time, and where is it?"
    answer = {"begins": asked["local"], "room": asked["room"]}
    return Task(
        id=f"meeting-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
        fields={
            "city": city,
            "person": person,
            "meetings": [{key: one[key] for key in ("topic", "utc", "room")} for one in meetings],
            "answer": answer,
        },
        seed=index,
    )
