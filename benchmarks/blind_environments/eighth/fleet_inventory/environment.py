"""IT fleet: count the devices of a group that still run an agent release.

user       How many devices of the group "Lisbon kiosks" run agent 5.2? ...
assistant  list_groups()                       tool  [{"group": "g-lisbon-kiosks", "name": "Lisbon kiosks"}, ...]
assistant  list_devices("g-lisbon-kiosks")     tool  [{"device": "d-9f31", "agent": "5.2"}, ...]
assistant  <answer>4</answer>
"""

from __future__ import annotations

import random
import re
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

CITIES = ["Lisbon", "Turin", "Ghent", "Malmo", "Krakow", "Porto", "Graz", "Bergen", "Brno", "Cork", "Split", "Lyon"]
KINDS = ["kiosks", "laptops", "tills", "scanners"]
RELEASES = ["5.0", "5.1", "5.2", "5.3"]
PAGE = 10


FIRST_NUMBER = {"train": 1000, "validation": 4000, "held_out": 7000}
"""Of the requests of a split; each has a number of its own."""


class Fleet(Environment):
    """The inventory of one company."""

    def reset(self, task: Task) -> None:
        self._groups: dict[str, dict] = task.fields["groups"]

    @tool
    def list_groups(self) -> list[dict[str, str]]:
        """All device groups: id and name."""
        return [{"group": group, "name": entry["name"]} for group, entry in self._groups.items()]

    @tool
    def list_devices(self, group: str, limit: Annotated[int, Bounded(ge=1, le=50)] = 50) -> list[dict[str, str]]:
        """The devices of a group: id and the release of the agent on it.

        Args:
            group: id of the group
            limit: how many devices to return at most; no group has more than 40
        """
        if group not in self._groups:
            raise ToolFailure(f"there is no group {group}")
        return [{"device": row["device"], "agent": row["agent"]} for row in self._groups[group]["devices"]][:PAGE]

    @tool
    def device(self, device: str) -> dict[str, str]:
        """One device: its owner and the release of the agent on it.

        Args:
            device: id of the device
        """
        for entry in self._groups.values():
            for row in entry["devices"]:
                if row["device"] == device:
                    return row
        raise ToolFailure(f"there is no device {device}")


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
    """1 for the right number in the answer tag."""
    return float(tagged(trajectory) == str(trajectory.task.fields["answer"]))


scorer = exact_match("answer")


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"fleet-{split}-{number}")
    groups = {}
    for city, kind in zip(rng.sample(CITIES, 4), rng.choices(KINDS, k=4), strict=True):
        devices = [
            {
                "device": f"d-{rng.randrange(16**6):06x}",
                "agent": rng.choice(RELEASES),
                "owner": f"team {rng.randint(1, 9)}",
            }
            for _ in range(rng.randint(5, 32))
        ]
        groups[f"g-{city}-{kind}".lower()] = {"name": f"{city} {kind}", "devices": devices}
    wanted, release = rng.choice(list(groups)), rng.choice(RELEASES)
    count = sum(row["agent"] == release for row in groups[wanted]["devices"])
    prompt = (
        f'Request {FIRST_NUMBER[split] + number}: how many devices of the group "{groups[wanted]["name"]}" run agent {release}? '
        "Look it up in the inventory and end with the number alone, as in <answer>3</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={"groups": groups, "group": wanted, "release": release, "answer": count},
        seed=number,
    )
