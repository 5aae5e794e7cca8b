"""A hotel's front desk: check guests in, change rooms, cancel bookings."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

ROOMS = [101, 102, 103, 201, 202, 203, 301, 302]
GUESTS = ["Irving", "Jansen", "Keller", "Larsen", "Moreau", "Nilsen"]
SYSTEM = "You run the front desk. Look at the bookings first; give a guest only a free room."


class FrontDesk(Environment):
    def reset(self, task: Task) -> None:
        self.rooms: dict[int, str] = {int(room): guest for room, guest in task.fields["rooms"].items()}

    @tool
    def bookings(self) -> dict[str, str]:
        """All booked rooms and their guests."""
        return {str(room): guest for room, guest in sorted(self.rooms.items())}

    @tool
    def check_in(self, guest: str, room: int) -> str:
        """Give a free room to a guest."""
        if room not in ROOMS:
            raise ValueError(f"there is no room {room}")
        if room in self.rooms:
            raise ValueError(f"room {room} is taken")
        if guest in self.rooms.values():
            raise ValueError(f"{guest} has a room")
        self.rooms[room] = guest
        return "ok"

    @tool
    def check_out(self, guest: str) -> str:
        """Free the room of a guest."""
        for room, name in list(self.rooms.items()):
            if name == guest:
                del self.rooms[room]
                return "ok"
        raise ValueError(f"{guest} has no room")

    def final_state(self) -> dict[str, str]:
        return {str(room): guest for room, guest in self.rooms.items()}


def reward(trajectory: Trajectory) -> float:
    """Half for the guest who leaves, half for the guest who gets that room."""
    fields = trajectory.task.fields
    calls = [(t["tool"], t["arguments"]) for t in trajectory.transitions]
    left = ("check_out", {"guest": fields["leaves"]}) in calls
    came = ("check_in", {"guest": fields["comes"], "room": fields["room"]}) in calls
    return 0.5 * left + 0.5 * came


def scorer(trajectory: Trajectory) -> float:
    return float(trajectory.final_state == trajectory.task.fields["wanted"])


def desk_tasks(split: str, num: int) -> list[Task]:
    rng = random.Random(f"desk-{split}")
    tasks = []
    for index in range(num):
        guests = rng.sample(GUESTS, 4)
        rooms = dict(zip(rng.sample(ROOMS, 3), guests))
        room = rng.choice(list(rooms))
        wanted = {str(r): (guests[3] if r == room else g) for r, g in rooms.items()}
        user = f"{rooms[room]} checks out of room {room}; {guests[3]} takes the room right after."
        tasks.append(
            Task(
                id=f"desk-{split}-{index}",
                messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
                fields={
                    "rooms": {str(r): g for r, g in rooms.items()},
                    "leaves": rooms[room],
                    "comes": guests[3],
                    "room": room,
                    "wanted": wanted,
                },
            )
        )
    return tasks


def train_tasks() -> list[Task]:
    return desk_tasks("train", 75)


def held_out_tasks() -> list[Task]:
    return desk_tasks("held_out", 25)
