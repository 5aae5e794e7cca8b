"""Audio guide of a museum: who made the work in a room?"""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

ARTISTS = [
    "Rodin",
    "Brancusi",
    "Camille Claudel",
    "Donatello",
    "Giacometti",
    "Henry Moore",
    "Barbara Hepworth",
    "Canova",
    "Bernini",
    "Maillol",
]
WORKS = [
    "The Runner",
    "Sleeping Fox",
    "Column",
    "The Widow",
    "Two Hands",
    "Morning",
    "The Oarsman",
    "Great Bird",
    "Mask",
    "The Well",
]


class AudioGuide(Environment):
    def reset(self, task):
        self.rooms = task.fields["rooms"]

    @tool
    def works_in(self, room: int) -> list[str]:
        """Titles of the works in a room.

        Args:
            room: 1 to 5
        """
        return [work["title"] for work in self.rooms.get(str(room), [])]

    @tool
    def label(self, title: str) -> dict[str, str]:
        """What the label of a work says.

        Args:
            title: of the work
        """
        for works in self.rooms.values():
            for work in works:
                if work["title"] == title:
                    return work
        return {"error": f"no work {title}"}


def spoken(trajectory):
    last = trajectory.messages[-1]
    return str(last.get("content") or "") if last["role"] == "assistant" else ""


def reward(trajectory):
    return 1.0 if spoken(trajectory).strip().lower() == trajectory.task.fields["artist"] else 0.0


def scorer(trajectory):
    return float(spoken(trajectory).casefold().strip() == trajectory.task.fields["artist"].casefold())


def visits(split, artists, num):
    rng = random.Random(f"museum {split}")
    out = []
    for index in range(num):
        titles = rng.sample(WORKS, 5)
        rooms = {
            str(room): [{"title": title, "artist": rng.choice(artists), "year": str(rng.randint(1450, 1960))}]
            for room, title in enumerate(titles, 1)
        }
        room = str(rng.randint(1, 5))
        text = f"Visitor {index + 1} stands in room {room}. Who made the work there? Reply with the artist's name only."
        out.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": text},),
                fields={"rooms": rooms, "artist": rooms[room][0]["artist"]},
            )
        )
    return out


def train_tasks():
    return visits("train", ARTISTS[:5], 50)


def validation_tasks():
    return visits("validation", ARTISTS[5:7], 10)


def held_out_tasks():
    return visits("held_out", ARTISTS[7:], 10)
