from __future__ import annotations

import random
import re
from datetime import date, timedelta

from sparring.environments import Environment, tool
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

CITIES = ["Aarhus", "Bremen", "Cork", "Dijon", "Espoo", "Faro", "Gdansk", "Heraklion", "Izmir", "Jena"]
SYSTEM = """You answer customers of a parcel service. A parcel arrives its days of transit after the day it was sent.
Answer as <final_output>{"city": "Faro", "arrives": "2025-04-30"}</final_output>."""


class Carrier:
    """What the depot's old system knows; transit times are text there, such as '3 days'."""

    def __init__(self, rows):
        self._rows = {row["number"]: row for row in rows}

    def row(self, number):
        return self._rows[number]

    def transit_days(self, number) -> int:
        text = self.row(number)["transit"]
        try:
            return int(re.sub(" days$", "", text))
        except ValueError:
            return 0


class ParcelDesk(Environment):
    def reset(self, task):
        self.carrier = Carrier(task.fields["parcels"])

    @tool
    def destination(self, number: str) -> str:
        """City that a parcel goes to.

        Args:
            number: of the parcel
        """
        return self.carrier.row(number)["city"]

    @tool
    def sent_on(self, number: str) -> str:
        """Day on which a parcel was sent, year-month-day.

        Args:
            number: of the parcel
        """
        return self.carrier.row(number)["sent"]

    @tool
    def arrival(self, number: str) -> str:
        """Day on which a parcel arrives, year-month-day.

        Args:
            number: of the parcel
        """
        sent = date.fromisoformat(self.carrier.row(number)["sent"])
        return (sent + timedelta(days=self.carrier.transit_days(number))).isoformat()


reward = json_fields(fields=["city", "arrives"])
scorer = json_exact()


def _parcel(rng, number):
    sent = date(2025, rng.randint(1, 12), rng.randint(1, 28))
    days = rng.choice([1, 1, 2, 3, 4, 6])
    return {
        "number": f"P{number}",
        "city": rng.choice(CITIES),
        "sent": sent.isoformat(),
        "transit": "1 day" if days == 1 else f"{days} days",
    }


def _tasks(split, num):
    rng = random.Random("parcels " + split)
    tasks = []
    for index in range(num):
        parcels = [_parcel(rng, number) for number in rng.sample(range(10_000, 99_999), 3)]
        mine = parcels[rng.randrange(3)]
        days = int(mine["transit"].split()[0])
        arrives = date.fromisoformat(mine["sent"]) + timedelta(days=days)
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=(
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Where does {mine['number']} go, and when does it arrive?"},
                ),
                fields={
                    "parcels": parcels,
                    "number": mine["number"],
                    "answer": {"city": mine["city"], "arrives": arrives.isoformat()},
                },
            )
        )
    return tasks


def train_tasks():
    return _tasks("train", 36)


def held_out_tasks():
    return _tasks("held-out", 15)
