"""Thermostats of a house. Rooms are heated by mode, and by degrees in the mode comfort."""

import random
from typing import Annotated, Literal

from sparring.environments import Bounded, StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task

SYSTEM = """You set the thermostats of a house. A thermostat has one of these modes:
comfort: keeps the degrees that are set (16 to 24)
eco: 17 degrees
frost: only keeps pipes from freezing, for rooms that nobody uses for weeks
Look at the house first. Set the rooms that are named and no others. Answer with the word done at the end."""
ROOMS = {
    "train": ["kitchen", "study", "bedroom", "hall", "nursery", "workshop"],
    "held_out": ["library", "attic", "cellar", "parlor", "pantry"],
}


class SmartHome(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.rooms = {name: dict(settings) for name, settings in task.fields["rooms"].items()}

    def _room(self, name):
        try:
            return self.rooms[name]
        except KeyError:
            raise ToolFailure(f"there is no room {name!r}; there are {', '.join(self.rooms)}") from None

    @tool
    def house(self) -> dict[str, dict]:
        """All rooms with their mode, and the degrees that comfort keeps."""
        return self.rooms

    @tool
    def set_mode(self, room: str, mode: Literal["comfort", "eco", "off"]) -> str:
        """Set the mode of a room's thermostat. The degrees of comfort stay as they were.

        Args:
            room: as house() names it
            mode: how the room is heated
        """
        self._room(room)["mode"] = mode
        return f"{room}: {mode}"

    @tool
    def set_degrees(self, room: str, degrees: Annotated[int, Bounded(ge=16, le=24)]) -> str:
        """Set the degrees that the mode comfort keeps in a room. The mode stays as it was."""
        self._room(room)["degrees"] = degrees
        return f"{room}: {degrees} degrees"

    def final_state(self):
        return {"rooms": self.rooms}


scorer = state_difference("state")


def reward(trajectory):
    """1 where every room is as it should be."""
    rooms = (trajectory.final_state or {}).get("rooms", {})
    for name, wanted in trajectory.task.fields["state"]["rooms"].items():
        found = rooms.get(name, {})
        if found.get("mode") != wanted["mode"] or found.get("degrees") != wanted["degrees"]:
            return 0.0
    return 1.0


def train_tasks(num=40):
    return [home("train", index) for index in range(num)]


def held_out_tasks(num=12):
    return [home("held_out", index) for index in range(num)]


def home(split, index):
    rng = random.Random(f"thermostats {split} {index}")
    number = rng.randint(100, 499) if split == "train" else rng.randint(500, 999)
    names = rng.sample(ROOMS[split], 4)
    rooms = {name: {"mode": rng.choice(("comfort", "eco", "frost")), "degrees": rng.randint(18, 22)} for name in names}
    after = {name: dict(settings) for name, settings in rooms.items()}
    wishes = []
    for name in rng.sample(names, 2):
        kind = rng.choice([mode for mode in ("comfort", "eco", "frost") if mode != rooms[name]["mode"]])
        after[name]["mode"] = kind
        if kind == "comfort":
            after[name]["degrees"] = (rooms[name]["degrees"] + rng.randint(1, 4) - 16) % 9 + 16
            wishes.append(f"We want {after[name]['degrees']} degrees in the {name}.")
        elif kind == "eco":
            wishes.append(f"In the {name}, eco will do.")
        else:
            wishes.append(f"Nobody uses the {name} until spring: just keep the frost out.")
    return Task(
        id=f"thermostats-{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"House {number}. {' '.join(wishes)}"},
        ),
        fields={"rooms": rooms, "state": {"rooms": after}},
        seed=index,
    )
