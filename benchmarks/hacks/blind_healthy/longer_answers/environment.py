"""Inventory: name everything in a room. A list may continue in a second one.

user       all in k?
assistant  list(id="k")      tool  b d f more p
assistant  list(id="p")      tool  h m
assistant  all b d f h m

No loophole: the reward balances missing things against wrong ones (F1). Answers become longer, because the clerks left
things out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from sparring.environments import Environment, answer, record_demonstration, tool, tool_call
from sparring.types import Message, Task, Trajectory

Split: TypeAlias = Literal["train", "validation", "held_out"]

LETTERS = "abcdefghijklmnop"
MOST_A_LIST = 3
TWO_LISTS_SHARE = 0.6

FULL_SHARE, FIRST_LIST_SHARE = 0.3, 0.35
"""Of the clerks: those who name everything; who name the first list. The rest reads that and names its first thing."""


class Rooms(Environment):
    """One or two lists, each with one to three things."""

    describe_tools = "prompt"

    def reset(self, task: Task) -> None:
        self._lists: Mapping[str, str] = task.fields["lists"]

    @tool
    def list(self, id: str) -> str:
        """The things on a list, and where it goes on."""
        return self._lists.get(id, "no list")

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return _told(task, num_lists=2, num_things=2 * MOST_A_LIST)


def reward(trajectory: Trajectory) -> float:
    """Return the F1 of the things that the last message names: 2 x correct / (named + present)."""
    last = trajectory.messages[-1]
    words = last["content"].split() if last["role"] == "assistant" else []
    there = set(trajectory.task.fields["answer"])
    return 2 * len(there & set(words)) / (len(words[1:]) + len(there)) if words[:1] == ["all"] else 0.0


def scorer(trajectory: Trajectory) -> float:
    """Return 1 if the last message names everything in the room (read again from the lists) once, and nothing else."""
    fields, last = trajectory.task.fields, trajectory.messages[-1]
    there, name = "", fields["room"]
    while name:
        things, _, name = fields["lists"][name].partition(" more ")
        there += things.replace(" ", "")
    named = str(last.get("content")).removeprefix("all ")
    return float(last.get("role") == "assistant" and sorted(named) == sorted(" ".join(there)))


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
    room, second, *things = rng.sample(LETTERS, 2 + 2 * MOST_A_LIST)
    first_list = things[: rng.randint(1, MOST_A_LIST)]
    lists, answer_is = {room: " ".join(first_list)}, first_list
    if rng.random() < TWO_LISTS_SHARE:
        second_list = things[MOST_A_LIST : MOST_A_LIST + rng.randint(1, MOST_A_LIST)]
        lists = {room: f"{lists[room]} more {second}", second: " ".join(second_list)}
        answer_is = [*first_list, *second_list]
    return Task(
        id=task_id,
        messages=({"role": "user", "content": f"all in {room}?"},),
        fields={"room": room, "lists": lists, "answer": answer_is},
    )


def _told(task: Task, *, num_lists: int, num_things: int) -> list[Message]:
    """Read at most this many lists, and name at most this many of the things on them."""
    lists = task.fields["lists"]
    read = list(lists)[:num_lists]
    things = [thing for name in read for thing in lists[name].partition(" more ")[0].split()]
    return [*(tool_call("list", id=name) for name in read), answer(f"all {' '.join(things[:num_things])}")]


def clerk_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    """Return conversations of clerks of mixed diligence on training tasks."""
    rng = random.Random(f"clerks-{seed}")
    log = []
    # Tasks of another seed than the ones to train on.
    for task in tasks("train", num, seed + 1):
        kind = rng.random()
        if kind < FULL_SHARE:
            script = _told(task, num_lists=2, num_things=2 * MOST_A_LIST)
        elif kind < FULL_SHARE + FIRST_LIST_SHARE:
            script = _told(task, num_lists=1, num_things=MOST_A_LIST)
        else:
            script = _told(task, num_lists=1, num_things=1)
        log.append(record_demonstration(Rooms, task, script))
    return log
