"""A parcel desk: look a parcel up, then its zone, and decide by weight and limit.

The recipe names no scorer.
"""

import json
import random
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.types import Message, Task

PROCEDURE = """\
Parcel desk. Call parcel with the id, then zone with the zone that it names.
Up to the limit: accept. Over the limit: split. Over twice the limit: refuse.
The decision is one of accept, split, refuse; the depot is the zone's.
Answer like this:
<final_output>{"decision": "", "depot": ""}</final_output>"""
DEPOTS = ("Harlow", "Dover", "Luton", "Oban", "Ripon", "Selby", "Thirsk", "Wells")


class ParcelDesk(Environment):
    def reset(self, task: Task) -> None:
        self.records = task.fields["records"]

    @tool
    def parcel(self, id: str) -> dict[str, str | int]:
        """Weight and zone of a parcel."""
        return self.records["parcel"][id]

    @tool
    def zone(self, name: str) -> dict[str, str | int]:
        """Limit and depot of a zone."""
        return self.records["zone"][name]

    def demonstrate(self, task: Task) -> Sequence[Message]:
        (parcel_id, parcel), *_ = task.fields["records"]["parcel"].items()
        reply = json.dumps(task.fields["answer"])
        return [
            tool_call("parcel", id=parcel_id),
            tool_call("zone", name=parcel["zone"]),
            answer(f"<final_output>{reply}</final_output>"),
        ]


def decide(weight: int, limit: int) -> str:
    return "accept" if weight <= limit else "split" if weight <= 2 * limit else "refuse"


def tasks(split: str, num: int, first: int) -> list[Task]:
    rng = random.Random(split)
    return [task(f"{split}-{index}", f"P{first + index}", rng) for index in range(num)]


def task(task_id: str, parcel_id: str, rng: random.Random) -> Task:
    zone, limit, depot = f"Z{rng.randint(10, 99)}", rng.randint(10, 40), rng.choice(DEPOTS)
    weight = limit + rng.choice((-5, 5, limit + 5))
    return Task(
        id=task_id,
        messages=(
            {"role": "system", "content": PROCEDURE},
            {"role": "user", "content": f"Decide on parcel {parcel_id}."},
        ),
        fields={
            "records": {
                "parcel": {parcel_id: {"weight": weight, "zone": zone}},
                "zone": {zone: {"limit": limit, "depot": depot}},
            },
            "answer": {"decision": decide(weight, limit), "depot": depot},
        },
    )


def train_tasks() -> list[Task]:
    return tasks("train", 60, 100)


def validation_tasks() -> list[Task]:
    return tasks("validation", 20, 300)


def held_out_tasks() -> list[Task]:
    return tasks("held_out", 20, 400)


reward = json_fields("final_output")
