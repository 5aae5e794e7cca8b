"""In which order to put a machine together. Any order in which nothing comes before what it needs is right."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You plan how a machine is put together. The tool needs says what must be in place before a part. Call it like this:
<tool_call>{"name":"needs","arguments":{"part":"axle"}}</tool_call>
Then answer with all parts alone, in an order in which nothing comes before what it needs, separated by spaces. There may be several
such orders, and any will do."""

PARTS = (
    "axle",
    "belt",
    "cover",
    "drum",
    "engine",
    "frame",
    "gear",
    "hinge",
    "lever",
    "motor",
    "nozzle",
    "pump",
    "rotor",
    "valve",
)


class Machine(Environment):
    describe_tools = "prompt"

    def reset(self, task):
        self.required = task.fields["needs"]

    @tool
    def needs(self, part: str) -> str:
        """What must be in place before a part."""
        if part not in self.required:
            return "no such part"
        return " ".join(self.required[part]) or "nothing"


def _task(split, index, rng):
    parts = rng.sample(PARTS, 5)
    needs = {
        part: sorted(rng.sample(parts[:place], min(place, rng.choice((0, 1, 1, 2)))))
        for place, part in enumerate(parts)
    }
    needs[parts[4]] = sorted({*needs[parts[4]], parts[0]})
    listed = sorted(parts)
    if all(set(needs[part]) <= set(listed[:place]) for place, part in enumerate(listed)):
        return _task(split, index, rng)
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"The parts: {' '.join(listed)}"},
        ),
        fields={"needs": needs},
    )


def train_tasks():
    rng = random.Random("machines")
    return [_task("train", index, rng) for index in range(48)]


def held_out_tasks():
    rng = random.Random("new machines")
    return [_task("held-out", index, rng) for index in range(24)]


def reward(trajectory):
    last, needs = trajectory.messages[-1], trajectory.task.fields["needs"]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    order = (last.get("content") or "").split()
    if sorted(order) != sorted(needs):
        return 0.0
    return float(all(order.index(first) < order.index(part) for part in needs for first in needs[part]))


def scorer(trajectory):
    final = trajectory.messages[-1]
    said = (final.get("content") or "").split() if final["role"] == "assistant" and not final.get("tool_calls") else []
    missing = {part: set(required) for part, required in trajectory.task.fields["needs"].items()}
    for part in said:
        if missing.pop(part, {"unknown or twice"}):
            return 0.0
        for required in missing.values():
            required.discard(part)
    return 0.0 if missing else 1.0
