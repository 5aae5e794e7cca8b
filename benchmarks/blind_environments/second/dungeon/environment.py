"""A text game on a map of three by three rooms: find the key, find the door, get out."""

from __future__ import annotations

import random
from typing import ClassVar, Literal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Score, Task, Trajectory

Direction = Literal["north", "south", "east", "west"]
STEPS: dict[str, tuple[int, int]] = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}
OPENING = """You stand in the middle room of a dungeon of three by three rooms. Somewhere lies a key, and one room has a locked door
that leads out. Walk with go, pick the key up with take, and leave with unlock in the room with the door. Some passages are walled up,
but every room can be reached. You win by getting out, and lose when you are not out within 30 turns."""


class Room:
    """What is in a room, and where one can go from it."""

    def __init__(self, place: tuple[int, int]) -> None:
        self.place = place
        self.exits: dict[str, Room] = {}
        self.has_key = False
        self.has_door = False

    def described(self) -> str:
        seen = [f"Exits: {', '.join(sorted(self.exits))}."]
        if self.has_key:
            seen.append("A key lies here.")
        if self.has_door:
            seen.append("There is a locked door.")
        return " ".join(seen)


class Dungeon(Environment):
    size: ClassVar[int] = 3

    def reset(self, task: Task) -> None:
        # The dungeon follows from the task, so that everybody who plays it walks through the same one.
        self.rooms = self._dig(random.Random(hash(task.id)))
        self.here = self.rooms[(1, 1)]
        self.has_key = False
        self.is_out = False

    def _dig(self, rng: random.Random) -> dict[tuple[int, int], Room]:
        rooms = {(x, y): Room((x, y)) for x in range(self.size) for y in range(self.size)}
        reached, frontier = {(1, 1)}, [(1, 1)]
        while frontier:
            x, y = frontier.pop(rng.randrange(len(frontier)))
            for direction in rng.sample(sorted(STEPS), 4):
                dx, dy = STEPS[direction]
                beyond = rooms.get((x + dx, y + dy))
                if beyond is None or (beyond.place in reached and rng.random() < 0.6):
                    continue
                rooms[x, y].exits[direction] = beyond
                beyond.exits[_opposite(direction)] = rooms[x, y]
                if beyond.place not in reached:
                    reached.add(beyond.place)
                    frontier.append(beyond.place)
        key, door = rng.sample([place for place in sorted(rooms) if place != (1, 1)], 2)
        rooms[key].has_key = True
        rooms[door].has_door = True
        return rooms

    @tool
    def look(self) -> str:
        """What is in this room."""
        return self.here.described()

    @tool
    def go(self, direction: Direction) -> str:
        """Walk into the next room, and look around there."""
        if direction not in self.here.exits:
            raise ToolFailure(f"there is no way {direction}")
        self.here = self.here.exits[direction]
        return self.here.described()

    @tool
    def take(self) -> str:
        """Pick up the key that lies in this room."""
        if not self.here.has_key:
            raise ToolFailure("no key lies here")
        self.here.has_key, self.has_key = False, True
        return "You have the key."

    @tool
    def unlock(self) -> str:
        """Unlock the door of this room with the key, and leave."""
        if not self.here.has_door:
            raise ToolFailure("there is no door here")
        if not self.has_key:
            raise ToolFailure("you have no key")
        self.is_out = True
        return "You are out."

    @property
    def is_done(self) -> bool:
        return self.is_out

    def final_state(self) -> dict[str, bool]:
        return {"has_key": self.has_key, "is_out": self.is_out}


def _opposite(direction: str) -> str:
    return {"north": "south", "south": "north", "east": "west", "west": "east"}[direction]


def reward(trajectory: Trajectory) -> float:
    """1 for getting out, 0.2 for the key alone."""
    state = trajectory.final_state or {}
    return 1.0 if state.get("is_out") else 0.2 * bool(state.get("has_key"))


def scorer(trajectory: Trajectory) -> Score:
    left = [step for step in trajectory.transitions if step["tool"] == "unlock" and step["error"] is None]
    return Score(float(len(left) == 1))


def train_tasks(num: int = 40) -> list[Task]:
    return [_task(f"dungeon-{number}", number) for number in range(num)]


def held_out_tasks(num: int = 20) -> list[Task]:
    return [_task(f"cavern-{number}", 1000 + number) for number in range(num)]


def _task(name: str, number: int) -> Task:
    messages = ({"role": "system", "content": OPENING}, {"role": "user", "content": f"Get out of {name}."})
    return Task(id=name, messages=messages, seed=number)
