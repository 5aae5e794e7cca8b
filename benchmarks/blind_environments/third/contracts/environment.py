"""A register of contracts, as it stood on 1 March 2025."""

import datetime as dt
import json
import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import json_exact
from sparring.types import Task

TODAY = dt.date(2025, 3, 1)
PARTNERS = "Acer Birch Cork Dogwood Elm Fir Gum Hazel Ilex Judas Kauri Larch Maple Nyssa Oak Pine".split()


class ContractRegister(Environment):
    def reset(self, task):
        self.ends = {name: dt.date.fromisoformat(end) for name, end in task.fields["ends"].items()}
        self.notice = task.fields["notice"]

    def end_of(self, partner):
        try:
            return self.ends[partner]
        except KeyError:
            raise ToolFailure(f"no contract with {partner}") from None

    @tool
    def days_left(self, partner: str) -> int:
        """Days from today until a contract ends; negative when it is over.

        Args:
            partner: name of the other party
        """
        return (self.end_of(partner) - dt.date.today()).days

    @tool
    def end_date(self, partner: str) -> str:
        """The last day of a contract, year-month-day.

        Args:
            partner: name of the other party
        """
        return self.end_of(partner).isoformat()

    @tool
    def notice_period(self, partner: str) -> int:
        """Days of notice that a contract needs.

        Args:
            partner: name of the other party
        """
        self.end_of(partner)
        return self.notice[partner]


scorer = json_exact()


def reward(trajectory):
    """0.5 for the days and 0.5 for the verdict."""
    last = trajectory.messages[-1]
    match = re.search("<final_output>(.*)</final_output>", last.get("content") or "", re.S)
    if last["role"] != "assistant" or not match:
        return 0.0
    try:
        given = json.loads(match[1])
    except ValueError:
        return 0.0
    if not isinstance(given, dict):
        return 0.0
    right = trajectory.task.fields["answer"]
    days = type(given.get("days")) is int and given["days"] == right["days"]
    return 0.5 * days + 0.5 * (given.get("in_time") is right["in_time"]) if days else 0.0


def _tasks(split, seed, num):
    rng = random.Random(seed)
    for i in range(num):
        partners = rng.sample(PARTNERS, 4)
        ends = {partner: TODAY + dt.timedelta(days=rng.randint(-20, 200)) for partner in partners}
        notice = {partner: rng.choice([14, 30, 60, 90]) for partner in partners}
        who = partners[0]
        days = (ends[who] - TODAY).days
        text = (
            f"Today is {TODAY.isoformat()}. For case {rng.randint(100, 999)}/{i}: in how many days does the contract with {who} end, and can notice still be given in time "
            'for that end? Answer: <final_output>{"days": 10, "in_time": true}</final_output>'
        )
        yield Task(
            id=f"{split}-{i}",
            messages=({"role": "user", "content": text},),
            fields={
                "ends": {partner: end.isoformat() for partner, end in ends.items()},
                "notice": notice,
                "who": who,
                "answer": {"days": days, "in_time": days >= notice[who]},
            },
        )


def train_tasks():
    return list(_tasks("train", 71, 26))


def held_out_tasks():
    return list(_tasks("held", 72, 11))
