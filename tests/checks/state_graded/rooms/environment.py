"""Rooms to book at a server of the Model Context Protocol; its bookings are the state that counts."""

import json
import random
import sys
from pathlib import Path

from sparring.environments import answer, tool_call
from sparring.environments.adapters.mcp_server import McpProcess
from sparring.scorers import state_difference
from sparring.types import Task

ROOMS = ("Atlas", "Basil", "Cedar", "Dune", "Echo", "Flint")
DAYS = ("monday", "tuesday", "friday")


class Rooms(McpProcess):
    def __init__(self):
        super().__init__(
            [sys.executable, "-I", "-S", "server.py"], folder=str(Path(__file__).parent), variables={"DAY": "none"}
        )

    def variables_of(self, task):
        return {"DAY": task.fields["day"]}

    async def final_state(self):
        return json.loads((await self.call_listed("show", {})).content)

    def demonstrate(self, task):
        wanted = [{"room": one["room"], "hour": one["hour"]} for one in task.fields["state"]["bookings"]]
        return [*(tool_call("book", **one) for one in wanted), answer("They are booked.")]


def tasks(split, num):
    rng = random.Random(split)
    return [one(f"{split}-{index}", rng) for index in range(num)]


def one(task_id, rng):
    day, hours = rng.choice(DAYS), rng.sample(range(8, 20), 2)
    bookings = [
        {"day": day, "room": room, "hour": hour} for room, hour in zip(rng.sample(ROOMS, 2), hours, strict=True)
    ]
    wish = ", then ".join(f"room {one['room']} at {one['hour']}" for one in bookings)
    return Task(
        id=task_id,
        messages=({"role": "user", "content": f"For {day} book {wish}."},),
        fields={"day": day, "state": {"bookings": bookings}},
    )


def train_tasks():
    return tasks("train", 3)


def held_out_tasks():
    return tasks("held_out", 6)


def reward(trajectory):
    wanted = trajectory.task.fields["state"]["bookings"]
    booked = (trajectory.final_state or {}).get("bookings", [])
    if len(booked) > len(wanted):
        return 0.0
    return sum(a == b for a, b in zip(wanted, booked, strict=False)) / len(wanted)


scorer = state_difference("state")
