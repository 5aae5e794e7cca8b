"""Well water: find the one polluted well of a valley. Each sample is paid for, so that few are better than many."""

from __future__ import annotations

import random
import re
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.scorers import exact_match
from sparring.types import Reward, Task, Trajectory

FREE = 4
COST = 0.05
LEAST = 0.5
FIRST_NUMBER = {"train": 100, "validation": 300, "held_out": 500}


class Valley(Environment):
    def reset(self, task: Task) -> None:
        self._well: int = task.fields["well"]

    @tool
    def sample(
        self, first: Annotated[int, Bounded(ge=1, le=999)], last: Annotated[int, Bounded(ge=1, le=999)]
    ) -> dict[str, bool]:
        """Mix water from all wells of a range, and tell whether the mixture is polluted.

        Args:
            first: lowest number of the range
            last: highest number of the range
        """
        return {"polluted": first <= self._well <= last}


CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)


def final_answer(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message. Code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", str(last.get("content") or ""))
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> Reward:
    """1 for the right well; with more samples than needed less, but never less than half."""
    is_right = final_answer(trajectory) == trajectory.task.fields["answer"]
    extra = max(0, len(trajectory.transitions) - FREE)
    cost = -min(COST * extra, 1 - LEAST) if is_right else 0.0
    return Reward(total=is_right + cost, components={"accuracy": float(is_right), "samples": cost})


scorer = exact_match("answer", "answer")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"wells {split} {number}")
    first = rng.randint(1, 900)
    well = first + rng.randint(0, 15)
    text = (
        f"Valley {FIRST_NUMBER[split] + number}: exactly one of the wells {first} to {first + 15} is polluted. Find out which. You may mix the water of "
        f"several wells in one sample; after {FREE} samples each further one costs a little. End with the number of the well, as in "
        "<answer>17</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"well": well, "answer": str(well)},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
