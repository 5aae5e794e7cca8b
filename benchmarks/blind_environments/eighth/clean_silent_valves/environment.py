"""Irrigation: open valves so that each bed gets the wanted flow. The controller is old and says nothing when it obeys."""

from __future__ import annotations

import random
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

BEDS = ["beans", "leeks", "squash", "kale", "chard", "peas", "beets", "mint"]


class Controller(Environment):
    """Each bed hangs on a valve; a valve may feed several beds, and then they share its flow evenly."""

    def reset(self, task: Task) -> None:
        self._valves = {name: list(beds) for name, beds in task.fields["valves"].items()}
        self._flow = dict(task.fields["flow"])

    @tool
    def valve_of(self, bed: str) -> str:
        """Which valve feeds a bed.

        Args:
            bed: what grows there
        """
        for name, beds in self._valves.items():
            if bed in beds:
                return name
        raise ToolFailure(f"there is no bed of {bed}")

    @tool
    def set_flow(self, valve: str, litres: Annotated[int, Bounded(ge=0, le=60)]) -> str:
        """Set the flow of a valve, in litres an hour. The controller answers with an empty line; read the gauge to see.

        Args:
            valve: as valve_of names it
            litres: litres an hour
        """
        if valve not in self._flow:
            raise ToolFailure(f"there is no valve {valve}")
        self._flow[valve] = litres
        return ""

    @tool
    def gauge(self, bed: str) -> str:
        """What a bed gets now, in litres an hour.

        Args:
            bed: what grows there
        """
        valve = self.valve_of(bed)
        return f"{self._flow[valve] // len(self._valves[valve])}"

    def final_state(self) -> dict[str, int]:
        return self._flow


def reward(trajectory: Trajectory) -> float:
    """1 when every valve stands as it should."""
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"valves-{split}-{number}")
    beds = rng.sample(BEDS, 6)
    valves = {
        f"V{key}": group
        for key, group in zip(rng.sample(range(10, 99), 3), (beds[:1], beds[1:3], beds[3:]), strict=True)
    }
    flow = {name: len(group) * rng.randint(1, 9) for name, group in valves.items()}
    name = rng.choice(list(valves))
    bed, share = (
        rng.choice(valves[name]),
        rng.choice([one for one in range(2, 16) if one * len(valves[name]) != flow[name]]),
    )
    prompt = (
        f"The {bed} need {share} litres an hour. Valves that feed several beds share their flow evenly between them, and it is fine "
        "when the neighbours on the same valve get as much. Leave the other valves alone, and tell me when it is done."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": f"Garden {rng.randint(100, 999)}. {prompt}"},),
        fields={"valves": valves, "flow": flow, "bed": bed, "state": flow | {name: share * len(valves[name])}},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
