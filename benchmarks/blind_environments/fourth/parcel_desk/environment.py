"""Quotes at the parcel counter: weigh, find the zone, add the surcharge."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You quote parcels at a counter. The price is the tariff of the weight plus the surcharge of the zone.
Tariff: up to 2 kg 5 euro, up to 5 kg 8 euro, up to 10 kg 12 euro, up to 20 kg 19 euro, heavier 30 euro.
When you know the price, answer with the whole number of euros alone, for example: 14"""

KG = {"kg": 1.0, "lb": 0.4536}
TARIFF = [(2, 5), (5, 8), (10, 12), (20, 19)]
ZONES = ("north", "south", "islands", "abroad")


def price(kilograms, surcharge):
    return next((euros for limit, euros in TARIFF if kilograms <= limit), 30) + surcharge


class ParcelDesk(Environment):
    def reset(self, task):
        self.parcels = task.fields["parcels"]
        self.surcharges = task.fields["surcharges"]

    @tool
    def weigh(self, parcel: str) -> str:
        """Weight of a parcel in kilograms.

        Args:
            parcel: the label, for example P17
        """
        if parcel not in self.parcels:
            return "no such parcel"
        scale = self.parcels[parcel]
        return f"{scale['weight']:.2f}"

    @tool
    def zone(self, parcel: str) -> str:
        """Zone that a parcel goes to."""
        return self.parcels[parcel]["zone"] if parcel in self.parcels else "no such parcel"

    @tool
    def surcharge(self, zone: str) -> str:
        """Surcharge of a zone in whole euros."""
        return str(self.surcharges.get(zone, "no such zone"))


def _task(split, index, rng):
    labels = [f"P{number}" for number in rng.sample(range(10, 100), 4)]
    parcels = {}
    for label in labels:
        unit = rng.choice(("kg", "kg", "lb"))
        kilograms = rng.choice((1.4, 1.7, 2.6, 3.1, 3.8, 4.4, 5.7, 6.9, 8.3, 9.2, 11.5, 13.8, 16.2))
        parcels[label] = {"weight": round(kilograms / KG[unit], 2), "unit": unit, "zone": rng.choice(ZONES)}
    surcharges = dict(zip(ZONES, rng.sample(range(1, 9), len(ZONES)), strict=True))
    wanted = parcels[labels[0]]
    kilograms = wanted["weight"] * KG[wanted["unit"]]
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"What does it cost to send parcel {labels[0]}?"},
        ),
        fields={
            "parcels": parcels,
            "surcharges": surcharges,
            "answer": str(price(kilograms, surcharges[wanted["zone"]])),
        },
    )


def train_tasks():
    rng = random.Random("parcels of spring")
    return [_task("train", index, rng) for index in range(48)]


def held_out_tasks():
    rng = random.Random("parcels of autumn")
    return [_task("held-out", index, rng) for index in range(24)]


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    return 1.0 if (last.get("content") or "").strip() == trajectory.task.fields["answer"] else 0.0


def scorer(trajectory):
    *_, message = trajectory.messages
    is_answer = message["role"] == "assistant" and not message.get("tool_calls")
    words = (message.get("content") or "").split() if is_answer else []
    return float(words == [trajectory.task.fields["answer"]])
