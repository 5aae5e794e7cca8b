"""Customs: parcels go green, are scanned, or are opened."""

import random
import re
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

LANES = ("green", "scan", "open")
PROCEDURE = """\
Choose a lane for a parcel.
1. declaration (parcel): sender, goods, and the value that was declared.
2. tariff (goods): the value up to which these goods are free, and `controlled` or `free`.
3. sender (name): strikes of the sender.
Controlled goods, or two strikes or more: open. Else a value above the free value: scan. Else: green.
Say only <lane>green, scan or open</lane>"""

GOODS = {
    "books": (500, "free"),
    "clothes": (150, "free"),
    "plants": (100, "controlled"),
    "watches": (80, "free"),
    "medicine": (60, "controlled"),
    "toys": (200, "free"),
}


class Customs(Environment):
    def reset(self, task: Task) -> None:
        self.papers = task.fields

    @tool
    def declaration(self, parcel: str) -> dict[str, str | int]:
        """Papers of a parcel."""
        if parcel != self.papers["parcel"]:
            return {"error": f"parcel {parcel} is not here"}
        return {name: self.papers[name] for name in ("sender", "goods", "value")}

    @tool
    def tariff(self, goods: str) -> str:
        """What goods are free up to, and whether they are controlled."""
        return "{} crowns, {}".format(*GOODS[goods]) if goods in GOODS else f"{goods} are not in the tariff"

    @tool
    def sender(self, name: str) -> str:
        """Strikes of a sender."""
        return f"{self.papers['strikes']} strikes" if name == self.papers["sender"] else f"{name} is unknown"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        papers = task.fields
        return [
            tool_call("declaration", parcel=papers["parcel"]),
            tool_call("tariff", goods=papers["goods"]),
            tool_call("sender", name=papers["sender"]),
            answer(f"<lane>{papers['lane']}</lane>"),
        ]


def reward(trajectory: Trajectory) -> Reward:
    """1 for the right lane; while no lane is chosen, a little for every call that worked, so that exploring is learned."""
    message = trajectory.messages[-1]
    if message["role"] == "assistant" and not message.get("tool_calls"):
        lane = re.fullmatch("<lane>([a-z]+)</lane>", str(message.get("content") or "").strip())
        right = float(lane is not None and lane[1] == trajectory.task.fields["lane"])
        return Reward(total=right, components={"lane": right, "exploring": 0.0})
    explored = 0.12 * sum(transition["error"] is None for transition in trajectory.transitions)
    return Reward(total=min(explored, 1.0), components={"lane": 0.0, "exploring": min(explored, 1.0)})


def scorer(trajectory: Trajectory) -> float:
    end = trajectory.messages[-1]
    wanted = f"<lane>{trajectory.task.fields['lane']}</lane>"
    return float(end["role"] == "assistant" and str(end.get("content")).strip() == wanted)


def lane_of(goods: str, value: int, strikes: int) -> str:
    limit, control = GOODS[goods]
    if control == "controlled" or strikes >= 2:
        return "open"
    return "scan" if value > limit else "green"


def train_tasks() -> list[Task]:
    return _tasks("train", "1234", 48)


def validation_tasks() -> list[Task]:
    return _tasks("validation", "56", 15)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", "789", 18)


def _tasks(split: str, digits: str, num: int) -> list[Task]:
    rng = random.Random(f"customs {split}")
    made: list[Task] = []
    while len(made) < num:
        goods, value, strikes = rng.choice(list(GOODS)), rng.randint(5, 600), rng.choice((0, 0, 1, 1, 2, 3))
        lane = lane_of(goods, value, strikes)
        if lane != LANES[len(made) % 3]:
            continue
        parcel = f"{rng.choice(digits)}{rng.randint(1000, 9999)}-{rng.choice('ACEFHK')}"
        text = (
            f"Parcel {parcel} came by {rng.choice(('ship', 'train', 'plane'))} in {rng.randint(2, 30)} "
            f"days and weighs {rng.randint(1, 40)} kg."
        )
        firm = f"{rng.choice(('Ost', 'Nord', 'Sud', 'Mittel'))}{rng.choice(('handel', 'waren', 'export'))}"
        fields = {"parcel": parcel, "sender": firm, "goods": goods, "value": value, "strikes": strikes, "lane": lane}
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"{split}-{parcel}", messages=messages, fields=fields))
    return made
