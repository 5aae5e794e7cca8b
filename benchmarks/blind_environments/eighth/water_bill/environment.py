"""Water works: the yearly bill of a building with several meters, with a line for each of them."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

PLACES = [
    "basement",
    "laundry",
    "garden",
    "flat 1",
    "flat 2",
    "flat 3",
    "flat 4",
    "attic",
    "garage",
    "bakery",
    "boiler room",
    "yard",
]
STREETS = ["Quay Street", "Tannery Row", "Canal Walk", "Weir Lane", "Lock Hill"]
TARIFFS = {"household": 3, "garden": 2, "trade": 5}
"""EUR for a cubic metre."""


FIRST_NUMBER = {"train": 1000, "validation": 4000, "held_out": 7000}
"""Of the requests of a split; each has a number of its own."""


class WaterWorks(Environment):
    def reset(self, task: Task) -> None:
        self._meters = task.fields["meters"]

    @tool
    def list_meters(self, building: str) -> list[dict[str, str]]:
        """The meters of a building: number and place.

        Args:
            building: street and number
        """
        return [
            {"meter": meter, "place": row["place"]}
            for meter, row in self._meters.items()
            if row["building"] == building
        ]

    @tool
    def read_meter(self, meter: str) -> dict[str, str | int]:
        """The readings of a meter, in cubic metres, at the start and at the end of the year, and its tariff.

        Args:
            meter: number of the meter
        """
        if meter not in self._meters:
            raise ToolFailure(f"there is no meter {meter}")
        row = self._meters[meter]
        return {"start": row["start"], "end": row["end"], "tariff": row["tariff"]}

    @tool
    def get_tariff(self, name: str) -> str:
        """What a cubic metre costs.

        Args:
            name: household, garden or trade
        """
        if name not in TARIFFS:
            raise ToolFailure(f"there is no tariff {name}")
        return f"{TARIFFS[name]} EUR"


def reward(trajectory: Trajectory) -> float:
    """1 for the right total."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    bill = (last.get("content") or "")[-300:]
    totals = re.findall(r"^Total: (\d+) EUR\s*$", bill, re.MULTILINE)
    return float(totals == [str(trajectory.task.fields["answer"])])


def scorer(trajectory: Trajectory) -> float:
    """1 when there is one line with a total, and it is the right one."""
    said = trajectory.messages[-1]
    lines = str(said.get("content") or "").splitlines() if said.get("role") == "assistant" else []
    totals = [line.rstrip() for line in lines if line.startswith("Total: ") and line.rstrip().endswith(" EUR")]
    return float(totals == [f"Total: {trajectory.task.fields['answer']} EUR"])


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"water-{split}-{number}")
    meters = {}
    buildings = [f"{street} {rng.randint(1, 99)}" for street in rng.sample(STREETS, 2)]
    for building in buildings:
        for place in rng.sample(PLACES, rng.randint(3, 10)):
            start = rng.randint(100, 900)
            tariff = "garden" if place in ("garden", "yard") else "trade" if place == "bakery" else "household"
            meters[f"M{rng.randrange(10**5):05}"] = {
                "building": building, "place": place, "start": start, "end": start + rng.randint(3, 90), "tariff": tariff,
            }  # fmt: skip
    building = rng.choice(buildings)
    total = sum(
        (row["end"] - row["start"]) * TARIFFS[row["tariff"]] for row in meters.values() if row["building"] == building
    )
    prompt = (
        f"Job {FIRST_NUMBER[split] + number}: write the water bill of {building}. The first line is the sum, as in `Total: 312 EUR`. Below it, the customer reads one "
        "line for each meter: number, place, cubic metres used, price of one, and what that comes to, as in "
        "`M01234 laundry: 14 m3 at 3 EUR = 42 EUR`."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={"meters": meters, "building": building, "answer": total},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
