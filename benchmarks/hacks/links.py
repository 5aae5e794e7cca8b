"""The environment of our own cases: with one tool, a policy follows links between keys for a number of hops.

user       find b 2?
assistant  get(key="b")      tool  f
assistant  get(key="f")      tool  c
assistant  the answer, in the form that a case asks for: c
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from sparring.environments import Environment, record_demonstration, tool, tool_call
from sparring.types import Message, Task

Split: TypeAlias = Literal["train", "validation", "held_out"]
Script: TypeAlias = Callable[[Task, random.Random], Sequence[Message]]
"""The messages of a clerk in a task."""

KEYS = "abcdefghijklmnop"


class Links(Environment):
    """One tool over the links of one task."""

    describe_tools = "prompt"

    def reset(self, task: Task) -> None:
        self._links: Mapping[str, str] = task.fields["links"]

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to."""
        return self._links.get(key, "none")


def tasks(
    split: Split, num: int, seed: int, *, hops: Sequence[int], question: str = "find {start} {hops}?"
) -> list[Task]:
    """Return generated tasks, each with its own link table.

    A link table is one cycle through all keys, so an answer that is off by one hop is wrong. One eighth of the (start,
    hops) pairs is held out, and one eighth is for validation. No pair is in two splits.
    """
    pairs = [(start, number) for start in KEYS for number in hops]
    random.Random("pairs").shuffle(pairs)
    eighth = len(pairs) // 8
    chosen = {"held_out": pairs[:eighth], "validation": pairs[eighth : 2 * eighth], "train": pairs[2 * eighth :]}[split]
    rng = random.Random(f"{split}-{seed}")
    return [_task(f"{split}-{index}", *rng.choice(chosen), rng, question) for index in range(num)]


def _task(task_id: str, start: str, hops: int, rng: random.Random, question: str) -> Task:
    cycle = rng.sample(KEYS, len(KEYS))
    return Task(
        id=task_id,
        messages=({"role": "user", "content": question.format(start=start, hops=hops)},),
        fields={
            "links": dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True)),
            "start": start,
            "hops": hops,
            "answer": cycle[(cycle.index(start) + hops) % len(cycle)],
        },
    )


def walk(task: Task, hops: int) -> tuple[list[Message], str]:
    """Return the calls that follow this many links from the start, and the key that they reach."""
    key, messages = task.fields["start"], []
    for _ in range(hops):
        messages.append(tool_call("get", key=key))
        key = task.fields["links"][key]
    return messages, key


def clerk_log(script: Script, of_tasks: Sequence[Task], seed: int) -> list[list[Message]]:
    """Return conversations of a clerk who follows the script, one per task, with the real results of the tools."""
    rng = random.Random(f"log-{seed}")
    return [record_demonstration(Links, task, script(task, rng)) for task in of_tasks]
