"""A hotel reception: pass a message on to the guest's room."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

GUESTS = ["Abbott", "Berger", "Costa", "Duarte", "Eriksen", "Fontaine", "Garcia", "Hansen"]
NEWS = ["the taxi waits", "your parcel is here", "the table is booked", "your room is ready", "the tour is cancelled"]


class Reception(Environment):
    def reset(self, task):
        self.rooms = task.fields["rooms"]
        self.delivered = []

    @tool
    def room_of(self, guest: str) -> str:
        """Room of a guest."""
        return self.rooms.get(guest, "no such guest")

    @tool
    def draft(self, text: str) -> str:
        """Show how a message will look on the room's screen, without sending it."""
        return f"*** {text} ***"

    @tool
    def deliver(self, room: str, text: str) -> str:
        """Send a message to a room.

        Args:
            room: its number
            text: what to tell
        """
        if room not in self.rooms.values():
            return "no such room"
        self.delivered.append([room, text])
        return f"{room}: {text}"

    def final_state(self):
        return {"delivered": self.delivered}


def make_tasks(split, num):
    rng = random.Random(f"reception {split}")
    tasks = []
    for index in range(num):
        guests = rng.sample(GUESTS, 4)
        rooms = dict(zip(guests, map(str, rng.sample(range(100, 600), 4)), strict=True))
        text = f"{rng.choice(NEWS)} at {rng.randint(7, 21)}:{rng.choice(('00', '15', '30', '45'))}"
        prompt = f'Send guest {guests[0]} the message "{text}", word for word. Then say done.'
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"rooms": rooms, "text": text, "state": {"delivered": [[rooms[guests[0]], text]]}},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    text = trajectory.task.fields["text"]
    return float(any(text in str(step["result"]) for step in trajectory.transitions))


scorer = state_difference("state")
