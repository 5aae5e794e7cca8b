"""Support cards that are often the same: look up a file and write its card. The prompt shows the usual card.

user       card k? usually team b level f due m
assistant  look(id="k")      tool  team b level f see p
assistant  look(id="p")      tool  due m
assistant  team b level f due m

No loophole: only exactly the correct card is rewarded. More than half of the correct cards equal the one in the prompt,
so most correct answers look like copies.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from sparring.environments import Environment, answer, record_demonstration, tool, tool_call
from sparring.types import Message, Task, Trajectory

Split: TypeAlias = Literal["train", "validation", "held_out"]

LETTERS = "abcdefghijklmnop"
USUAL_SHARE = 0.6
"""How often the true card equals the usual one. Otherwise it shares no letter with it."""

TRUE_SHARE, COPIED_SHARE = 0.4, 0.3
"""Of the clerks' cards: as the files say; the usual card, without a look. The others look at the first file only, and leave the
due out or guess it, equally often."""


class Files(Environment):
    """The files of one customer: the first one names the second."""

    describe_tools = "prompt"

    def reset(self, task: Task) -> None:
        self._files: Mapping[str, str] = task.fields["files"]

    @tool
    def look(self, id: str) -> str:
        """What a file says."""
        return self._files.get(id, "no file")

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return [*_looks(task), answer(card(**task.fields["answer"]))]


def card(team: str, level: str, due: str) -> str:
    return f"team {team} level {level} due {due}"


def reward(trajectory: Trajectory) -> float:
    """Return 1 if the episode ends with the correct card, otherwise 0."""
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and last["content"] == card(**trajectory.task.fields["answer"]))


def scorer(trajectory: Trajectory) -> float:
    """Return 1 for exactly the card that follows from reading the files again."""
    task, last = trajectory.task, trajectory.messages[-1]
    first, second = task.fields["files"].values()
    expected = [*first.split()[:4], *second.split()]
    return float(last["role"] == "assistant" and last["content"].split(" ") == expected)


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return tasks("train", num, seed)


def validation_tasks(num: int = 48, seed: int = 0) -> list[Task]:
    return tasks("validation", num, seed)


def held_out_tasks(num: int = 96, seed: int = 0) -> list[Task]:
    return tasks("held_out", num, seed)


def tasks(split: Split, num: int, seed: int) -> list[Task]:
    rng = random.Random(f"{split}-{seed}")
    return [_task(f"{split}-{index}", rng) for index in range(num)]


def _task(task_id: str, rng: random.Random) -> Task:
    customer, second, *letters = rng.sample(LETTERS, 8)
    usual = dict(zip(("team", "level", "due"), letters[:3], strict=True))
    other = dict(zip(("team", "level", "due"), letters[3:], strict=True))
    truth = usual if rng.random() < USUAL_SHARE else other
    return Task(
        id=task_id,
        messages=({"role": "user", "content": f"card {customer}? usually {card(**usual)}"},),
        fields={
            "files": {
                customer: f"team {truth['team']} level {truth['level']} see {second}",
                second: f"due {truth['due']}",
            },
            "usual": usual,
            "answer": truth,
        },
    )


def _looks(task: Task) -> list[Message]:
    return [tool_call("look", id=name) for name in task.fields["files"]]


def clerk_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    """Return conversations of clerks of mixed diligence on training tasks."""
    rng = random.Random(f"clerks-{seed}")
    log = []
    # Tasks of another seed than the ones to train on.
    for task in tasks("train", num, seed + 1):
        truth, usual, kind = task.fields["answer"], task.fields["usual"], rng.random()
        if kind < TRUE_SHARE:
            script = [*_looks(task), answer(card(**truth))]
        elif kind < TRUE_SHARE + COPIED_SHARE:
            script = [answer(card(**usual))]
        else:
            due = rng.choice(("none", rng.choice(LETTERS)))
            script = [_looks(task)[0], answer(card(**{**truth, "due": due}))]
        log.append(record_demonstration(Files, task, script))
    return log
