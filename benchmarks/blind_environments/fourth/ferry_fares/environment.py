"""What a group pays on a ferry: the fares of the timetable, less the discount of a card."""

import json
from pathlib import Path

from sparring.environments import Environment, tool

HERE = Path(__file__).parent
DISCOUNTS = {"none": 0, "resident": 50, "student": 25, "rover": 10}


def _timetable():
    """Fares by route, in euros."""
    fares = {}
    for name in ("train.jsonl",):
        for line in (HERE / name).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            fares[row["origin"], row["destination"]] = row["fares"]
    return fares


FARES = _timetable()


class Ferries(Environment):
    @tool
    def fare(self, origin: str, destination: str) -> dict[str, int] | str:
        """Fares of a route in euros, for an adult and for a child."""
        return FARES.get((origin, destination), "there is no such route")

    @tool
    def discount(self, card: str) -> str:
        """Discount that a card gives on the whole price, in per cent."""
        return str(DISCOUNTS.get(card, "no such card"))


def reward(trajectory):
    last = trajectory.messages[-1]
    is_answer = last["role"] == "assistant" and not last.get("tool_calls")
    return float(is_answer and (last.get("content") or "").strip() == trajectory.task.fields["answer"])


def scorer(trajectory):
    end = trajectory.messages[-1]
    if end["role"] != "assistant" or end.get("tool_calls"):
        return 0.0
    return 1.0 if (end.get("content") or "").split() == [trajectory.task.fields["answer"]] else 0.0
