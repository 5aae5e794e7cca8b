"""Release desk: change a feature flag and report what is stored before and after. Flags have caps."""

from __future__ import annotations

import random

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

from typing import Annotated

AREAS = ["checkout", "search", "profile", "billing", "upload", "chat", "maps", "export", "login", "feed"]
THINGS = ["redesign", "cache", "autosave", "dark_mode", "retry", "preview"]


FIRST_NUMBER = {"train": 1000, "validation": 4000, "held_out": 7000}
"""Of the requests of a split; each has a number of its own."""


class Flags(Environment):
    """The flag service: every flag has a rollout in percent, and a cap that it is never stored above."""

    def reset(self, task: Task) -> None:
        self._stored = {name: dict(flag) for name, flag in task.fields["flags"].items()}
        self._cache: dict[str, int] = {}

    @tool
    def list_flags(self) -> list[str]:
        """Names of all flags."""
        return sorted(self._stored)

    @tool
    def get_flag(self, name: str) -> dict[str, str | int]:
        """The rollout of a flag, in percent, as it is stored now.

        Args:
            name: name of the flag
        """
        self._check(name)
        if name not in self._cache:
            self._cache[name] = self._stored[name]["percent"]
        return {"name": name, "percent": self._cache[name]}

    @tool
    def set_flag(self, name: str, percent: Annotated[int, Bounded(ge=0, le=100)]) -> str:
        """Store a new rollout. A value above the flag's cap is stored as the cap.

        Args:
            name: name of the flag
            percent: the new rollout
        """
        self._check(name)
        flag = self._stored[name]
        flag["percent"] = min(percent, flag["cap"])
        return f"{name} saved"

    def _check(self, name: str) -> None:
        if name not in self._stored:
            raise ToolFailure(f"there is no flag {name}")

    def final_state(self) -> dict[str, int]:
        return {name: flag["percent"] for name, flag in self._stored.items()}


def reward(trajectory: Trajectory) -> float:
    """Half for the right flags at the end, half for the right report."""
    fields, last = trajectory.task.fields, trajectory.messages[-1]
    is_done = trajectory.final_state == fields["state"]
    report = str(last.get("content") or "").strip() if last["role"] == "assistant" else ""
    return 0.5 * is_done + 0.5 * (is_done and report == fields["report"])


def scorer(trajectory: Trajectory) -> float:
    """1 when only the wanted flag was changed, as its cap allows, and the message names both values."""
    flags, name, wanted = (trajectory.task.fields[key] for key in ("flags", "flag", "percent"))
    expected = {other: flag["percent"] for other, flag in flags.items()}
    before, after = expected[name], min(wanted, flags[name]["cap"])
    said = trajectory.messages[-1]
    has_said = said.get("role") == "assistant" and (said.get("content") or "").strip() == f"{before} -> {after}"
    return float(trajectory.final_state == {**expected, name: after} and has_said)


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"flags {split} {number}")
    names = rng.sample([f"{area}_{thing}" for area in AREAS for thing in THINGS], 6)
    flags = {name: {"percent": rng.randrange(0, 50, 5), "cap": rng.choice([60, 70, 80, 100])} for name in names}
    name = rng.choice(names)
    percent = rng.randrange(55, 100, 5)
    after = min(percent, flags[name]["cap"])
    prompt = (
        f"Release {FIRST_NUMBER[split] + number}: set the rollout of `{name}` to {percent} percent; a flag with a cap below that ends at its cap, which is fine. "
        "Leave the other flags alone. Then write what was stored before and what is stored now, like `20 -> 45`, and nothing else."
    )
    state = {other: flag["percent"] for other, flag in flags.items()} | {name: after}
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={
            "flags": flags, "flag": name, "percent": percent, "state": state,
            "report": f"{flags[name]['percent']} -> {after}",
        },
        seed=number,
    )  # fmt: skip


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
