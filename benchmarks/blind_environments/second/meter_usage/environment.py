"""Consumption of a town's electricity meters, in a table of pandas."""

from __future__ import annotations

import random
from typing import Literal

import pandas as pd

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

SYSTEM = """You report a town's electricity consumption. Every meter has a district, and most have a tariff; meters without one form the
group "none". Answer with the number of groups, that of "none" among them where there is such a meter, the kWh of all groups
together, and the group that used most:
<final_output>{"groups":0,"kwh":0,"most":""}</final_output>"""
TARIFFS = {"train": ["day", "night", "solar", "farm"], "held_out": ["flat", "peak", "green", "social"]}
DISTRICTS = {"train": ["North", "Harbor", "Mill", "Hill"], "held_out": ["Forest", "Lake", "Station", "Bridge"]}


class MeterUsage(Environment):
    def reset(self, task: Task) -> None:
        self.table = pd.DataFrame(task.fields["meters"], columns=["meter", "district", "tariff", "kwh"])

    @tool
    def usage(self, by: Literal["district", "tariff"]) -> dict[str, int]:
        """kWh of all meters by group; meters without a value are the group "none".

        Args:
            by: what the groups are made of
        """
        totals = self.table.groupby(by)["kwh"].sum()
        return {"none" if pd.isna(group) else str(group): int(kwh) for group, kwh in totals.items()}

    @tool
    def meter(self, number: str) -> dict[str, str | int | None]:
        """One meter, by its number."""
        rows = self.table[self.table["meter"] == number]
        if rows.empty:
            raise ToolFailure(f"there is no meter {number}")
        row = rows.iloc[0]
        tariff = None if pd.isna(row["tariff"]) else str(row["tariff"])
        return {"meter": number, "district": str(row["district"]), "tariff": tariff, "kwh": int(row["kwh"])}

    @tool
    def largest(self, district: str) -> list[str]:
        """Numbers of the three meters of a district that used most."""
        rows = self.table[self.table["district"] == district].sort_values("kwh", ascending=False)
        return [str(number) for number in rows["meter"].head(3)]


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num: int = 40) -> list[Task]:
    return [_task("train", index) for index in range(num)]


def held_out_tasks(num: int = 16) -> list[Task]:
    return [_task("held_out", index) for index in range(num)]


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"meters {split} {index}")
    missing = rng.choice((0.0, 0.1, 0.3))
    meters = []
    for number in rng.sample(range(1000, 9999), 18):
        tariff = None if rng.random() < missing else rng.choice(TARIFFS[split])
        meters.append([f"M{number}", rng.choice(DISTRICTS[split]), tariff, rng.randint(150, 4000)])
    by = rng.choice(("district", "tariff", "tariff"))
    totals: dict[str, int] = {}
    for _, district, tariff, kwh in meters:
        group = district if by == "district" else tariff or "none"
        totals[group] = totals.get(group, 0) + kwh
    answer = {"groups": len(totals), "kwh": sum(totals.values()), "most": max(totals, key=lambda group: totals[group])}
    user = f"Town {'A' if split == 'train' else 'B'}{index}: consumption by {by}, please."
    return Task(
        id=f"meters-{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": user}),
        fields={"meters": meters, "by": by, "answer": answer},
        seed=index,
    )
