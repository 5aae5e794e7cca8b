"""Laboratory: fetch the readings of a batch and hand them over in order."""

from __future__ import annotations

import json
import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

ASSAYS = ["glucose", "sodium", "ferritin", "lactate", "urea", "zinc", "folate", "calcium", "albumin", "copper"]
ORDERS = ["ascending", "descending"]


FIRST_NUMBER = {"train": 1000, "validation": 4000, "held_out": 7000}
"""Of the requests of a split; each has a number of its own."""


class Bench(Environment):
    def reset(self, task: Task) -> None:
        self._batches: dict[str, dict] = task.fields["batches"]

    @tool
    def list_batches(self, assay: str) -> list[str]:
        """Ids of the batches of an assay.

        Args:
            assay: what was measured, as in "sodium"
        """
        return [batch for batch, entry in self._batches.items() if entry["assay"] == assay.lower()]

    @tool
    def get_readings(self, batch: str) -> list[str]:
        """The readings of a batch, in the order in which they were taken.

        Args:
            batch: id of the batch
        """
        if batch not in self._batches:
            raise ToolFailure(f"there is no batch {batch}")
        return self._batches[batch]["readings"]


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the right list."""
    try:
        return float(json.loads(tagged(trajectory) or "null") == trajectory.task.fields["answer"])
    except json.JSONDecodeError:
        return 0.0


def scorer(trajectory: Trajectory) -> float:
    """1 when the answer is a JSON array that holds just the expected texts, in their order."""
    said = trajectory.messages[-1]
    text = str(said.get("content") or "") if said.get("role") == "assistant" else ""
    text = "".join(part for place, part in enumerate(text.split("`")) if place % 2 == 0)
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return 0.0
    try:
        given = json.loads(text.split("<answer>")[1].split("</answer>")[0])
    except json.JSONDecodeError:
        return 0.0
    return float(given == list(trajectory.task.fields["answer"]))


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"lab:{split}:{number}")
    batches = {}
    for assay in rng.sample(ASSAYS, 4):
        tenths = rng.sample(range(-90, 990), rng.randint(5, 8))
        is_fine = rng.random() < 0.5
        readings = [
            f"{tenth / 10 + 0.01 * rng.randint(1, 9):.2f}" if is_fine else f"{tenth / 10:.1f}" for tenth in tenths
        ]
        batches[f"{assay[:2].upper()}-{rng.randint(100, 999)}"] = {"assay": assay, "readings": readings}
    batch, order = rng.choice(list(batches)), rng.choice(ORDERS)
    readings = sorted(batches[batch]["readings"], key=float, reverse=order == "descending")
    prompt = (
        f"Request {FIRST_NUMBER[split] + number}: fetch the readings of the {batches[batch]['assay']} batch and write them down in {order} order, each one just as the "
        'bench reports it, as a list of strings in an answer tag. For example: <answer>["-1.5", "3.07", "12.0"]</answer>'
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={
            "batches": batches,
            "batch": batch,
            "order": order,
            "answer": [f"{float(text):.1f}" for text in readings],
        },
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
