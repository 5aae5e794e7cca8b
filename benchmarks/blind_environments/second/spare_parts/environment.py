"""Spare parts: a part may have been superseded by another, and that by a third; only the last is sold."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

SYSTEM = """You sell spare parts. A part may be superseded by another one, which may be superseded in turn. Follow them to the part that is
sold today, and answer with its number and its price in cents:
<final_output>{"part":"","cents":0}</final_output>"""


class SpareParts(Environment):
    def reset(self, task: Task) -> None:
        self.parts: dict[str, dict] = task.fields["parts"]

    @tool
    def part(self, number: str) -> dict:
        """A part: what superseded it, or its price in cents where it is sold today.

        Args:
            number: of the part
        """
        if number not in self.parts:
            raise ToolFailure(f"there is no part {number!r}")
        return {"number": number, **self.parts[number]}


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num: int = 40) -> list[Task]:
    return _tasks("train", num)


def held_out_tasks(num: int = 16) -> list[Task]:
    return _tasks("held_out", num)


def _tasks(split: str, num: int) -> list[Task]:
    """The catalog grew over the years: the later a task, the longer its chains may be, up to eleven parts."""
    tasks = []
    for index in range(num):
        rng = random.Random(f"parts {split} {index}")
        longest = 3 + 8 * index // max(1, num - 1)
        codes = [
            f"{rng.choice('ACEGKM' if split == 'train' else 'BDFHLN')}{n}" for n in rng.sample(range(100, 1000), 22)
        ]
        chain, other = codes[: rng.randint(max(2, longest - 2), longest)], codes[11 : 11 + rng.randint(2, 5)]
        parts: dict[str, dict] = {}
        for numbers in (chain, other):
            for old, new in zip(numbers, numbers[1:], strict=False):
                parts[old] = {"superseded_by": new}
            parts[numbers[-1]] = {"cents": rng.randint(100, 30_000)}
        tasks.append(
            Task(
                id=f"parts-{split}-{index}",
                messages=(
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"A customer asks for part {chain[0]}."},
                ),
                fields={"parts": dict(sorted(parts.items())), "answer": {"part": chain[-1], **parts[chain[-1]]}},
                seed=index,
            )
        )
    return tasks
