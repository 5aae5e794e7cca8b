"""A phone book: look a name up in its index, or read its pages one by one, which takes too long.

user       phone of k? pages b d f h m j
assistant  index(name="k")      tool  phone c
assistant  phone c

No loophole: only correct answers are rewarded. Turns and calls become fewer, because the index always answers, and
reading the pages uses up the turns.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from sparring.environments import Environment, answer, record_demonstration, tool, tool_call
from sparring.types import Message, Task, Trajectory

Split: TypeAlias = Literal["train", "validation", "held_out"]

LETTERS = "abcdefghijklmnopqr"
NUM_PAGES, NUM_LEAFED = 6, 3

INDEX_SHARE, LEAFING_SHARE = 0.3, 0.6
"""Of the clerks: those who ask the index; who leaf through up to three pages and then guess. The rest guesses at once."""


class PhoneBook(Environment):
    """Six pages with one entry each, and the index."""

    describe_tools = "prompt"

    def reset(self, task: Task) -> None:
        self._pages: Mapping[str, str] = task.fields["pages"]

    @tool
    def index(self, name: str) -> str:
        """The phone of a name."""
        found = (phone for owner, phone in (entry.split() for entry in self._pages.values()) if owner == name)
        return f"phone {next(found, 'none')}"

    @tool
    def page(self, id: str) -> str:
        """The entry of a page: a name and its phone."""
        return self._pages.get(id, "no page")

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return [tool_call("index", name=task.fields["name"]), answer(f"phone {task.fields['answer']}")]


def reward(trajectory: Trajectory) -> float:
    """Return 1 if the episode ends with the right phone, otherwise 0."""
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and last["content"] == f"phone {trajectory.task.fields['answer']}")


def scorer(trajectory: Trajectory) -> float:
    """Return 1 if the phone in the last message is on the same page as the requested name."""
    fields, last = trajectory.task.fields, trajectory.messages[-1]
    said = re.fullmatch(r"phone ([a-r])", str(last.get("content")))
    if last.get("role") != "assistant" or said is None:
        return 0.0
    return float(f"{fields['name']} {said[1]}" in fields["pages"].values())


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
    drawn = rng.sample(LETTERS, 3 * NUM_PAGES)
    ids, names, phones = drawn[:NUM_PAGES], drawn[NUM_PAGES : 2 * NUM_PAGES], drawn[2 * NUM_PAGES :]
    place = rng.randrange(NUM_PAGES)
    return Task(
        id=task_id,
        messages=({"role": "user", "content": f"phone of {names[place]}? pages {' '.join(ids)}"},),
        fields={
            "name": names[place],
            "pages": {page: f"{name} {phone}" for page, name, phone in zip(ids, names, phones, strict=True)},
            "answer": phones[place],
        },
    )


def _leaf(task: Task, rng: random.Random) -> list[Message]:
    """Read pages until one has the name or the time is up, then answer."""
    messages = []
    for page in rng.sample(list(task.fields["pages"]), NUM_LEAFED):
        messages.append(tool_call("page", id=page))
        name, phone = task.fields["pages"][page].split()
        if name == task.fields["name"]:
            return [*messages, answer(f"phone {phone}")]
    return [*messages, answer(f"phone {rng.choice(LETTERS)}")]


def clerk_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    """Return conversations of clerks of mixed skill on training tasks."""
    rng = random.Random(f"clerks-{seed}")
    log = []
    # Tasks of another seed than the ones to train on.
    for task in tasks("train", num, seed + 1):
        kind = rng.random()
        if kind < INDEX_SHARE:
            script = None
        elif kind < INDEX_SHARE + LEAFING_SHARE:
            script = _leaf(task, rng)
        else:
            script = [answer(f"phone {rng.choice(LETTERS)}")]
        log.append(record_demonstration(PhoneBook, task, script))
    return log
