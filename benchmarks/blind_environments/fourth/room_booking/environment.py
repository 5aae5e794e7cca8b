"""Book a meeting room: the smallest that is large enough and free."""

import random

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

SYSTEM = """\
You book meeting rooms. Book the smallest room that has enough seats and is free at the hour, and only that one. A room that is locked
has to be opened before it can be booked. Say done when the booking stands."""

ROOMS = ("Alder", "Beech", "Cedar", "Elm", "Hazel", "Larch", "Maple", "Oak")


class Rooms(Environment):
    def reset(self, task):
        self.rooms = {name: dict(room) for name, room in task.fields["rooms"].items()}
        self.bookings = []

    @tool
    def rooms_with(self, seats: int) -> dict[str, int]:
        """Rooms with at least so many seats, and how many they have."""
        return {name: room["seats"] for name, room in self.rooms.items() if room["seats"] >= seats}

    @tool
    def busy_hours(self, room: str) -> list[int] | str:
        """Hours at which a room is taken."""
        return self.rooms[room]["busy"] if room in self.rooms else "no such room"

    @tool
    def open(self, room: str) -> str:
        """Open a locked room."""
        if room not in self.rooms:
            return "no such room"
        self.rooms[room]["locked"] = False
        return "open"

    @tool
    def book(self, room: str, hour: int) -> str:
        """Book a room for an hour."""
        if room not in self.rooms:
            return "refused: no such room"
        if self.rooms[room]["locked"]:
            return "refused: the room is locked"
        if hour in self.rooms[room]["busy"] or not 8 <= hour <= 18:
            return "refused: not free at that hour"
        self.rooms[room]["busy"] = [*self.rooms[room]["busy"], hour]
        self.bookings.append({"room": room, "hour": hour})
        return "booked"

    def final_state(self):
        return {"bookings": sorted(self.bookings, key=lambda booking: (booking["room"], booking["hour"]))}


def _task(split, index, rng):
    names = rng.sample(ROOMS, 5)
    sizes = sorted(rng.sample(range(4, 30), 5))
    hour, first = rng.randint(8, 18), rng.randrange(3)
    best = rng.randint(first, min(first + 1, 4))
    rooms = {}
    for place, (name, seats) in enumerate(zip(names, sizes, strict=True)):
        busy = set(rng.sample(range(8, 19), 3)) - {hour}
        if first <= place < best:
            busy.add(hour)
        rooms[name] = {"seats": seats, "busy": sorted(busy), "locked": rng.random() < 0.5}
    shuffled = {name: rooms[name] for name in rng.sample(names, 5)}
    needed = rng.randint(sizes[first - 1] + 1 if first else 3, sizes[first])
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"We are {needed} people and meet at {hour} o'clock."},
        ),
        fields={"rooms": shuffled, "state": {"bookings": [{"room": names[best], "hour": hour}]}},
    )


def train_tasks():
    rng = random.Random("meetings")
    return [_task("train", index, rng) for index in range(40)]


def held_out_tasks():
    rng = random.Random("more meetings")
    return [_task("held-out", index, rng) for index in range(20)]


def reward(trajectory):
    made = [step["arguments"] for step in trajectory.transitions if step["tool"] == "book" and step["error"] is None]
    return 1.0 if made == trajectory.task.fields["state"]["bookings"] else 0.0


scorer = state_difference("state")
