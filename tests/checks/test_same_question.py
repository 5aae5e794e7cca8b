"""One question about other data is another task; in a conversation the user may say what the prompt does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sparring.checks import CHECKS
from sparring.checks.evidence.subject import Subject
from sparring.config import load_config

ENVIRONMENT = """
from sparring.environments import Environment, tool
from sparring.types import Task


class Shop(Environment):
    def reset(self, task):
        self.price = task.fields["price"]

    {method}


def reward(trajectory):
    return float(trajectory.messages[-1]["content"] == trajectory.task.fields["price"])


def tasks(split, first):
    prompts = ["Price of " + name + "?" for name in ("ink", "oak", "tea", "jam", "salt", "rope", "wine", "corn")]
    return [
        Task(id=split + str(n), messages=({{"role": "user", "content": one}},), fields={{"price": str(first + n)}})
        for n, one in enumerate(prompts)
    ]


def train():
    return tasks("train", 10)


def held_out():
    return tasks("held_out", {held_out})
"""
TOOL = '@tool\n    def price_of(self, name: str) -> str:\n        "Price."\n        return self.price'
REPLY = "def reply(self, messages, session):\n        return self.price if len(messages) < 4 else None"
RECIPE = """
[data]
train = "environment:train"
held_out = "environment:held_out"
[environment]
target = "environment:Shop"
[reward]
reward = "environment:reward"
scorer = "environment:reward"
"""


def symptoms(folder: Path, rule: str, method: str, held_out: int) -> list[str]:
    (folder / "environment.py").write_text(ENVIRONMENT.format(method=method, held_out=held_out), "utf-8")
    (folder / "recipe.toml").write_text(RECIPE, "utf-8")
    subject = Subject(load_config(folder / "recipe.toml"), folder / "recipe.toml")
    return [one.symptom for one in asyncio.run(CHECKS[rule].function(subject))]  # type: ignore[arg-type]


@pytest.mark.parametrize(("held_out", "num"), [(10, 1), (50, 0)])
def test_a_task_of_two_splits_is_the_same_only_with_the_same_answer(tmp_path: Path, held_out: int, num: int) -> None:
    assert len(symptoms(tmp_path, "data.contamination", TOOL, held_out)) == num


@pytest.mark.parametrize(("method", "num"), [("pass", 1), (TOOL, 0), (REPLY, 0)])
def test_a_prompt_with_two_answers_is_wrong_only_where_nothing_else_is_shown(
    tmp_path: Path, method: str, num: int
) -> None:
    assert len(symptoms(tmp_path, "data.duplicates", method, 50)) == num
