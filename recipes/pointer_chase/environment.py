"""Pointer chase: follow hidden links from a key for a number of hops, then name the key that you reached.

user       find b 2?
assistant  get(key="b")      tool  f
assistant  get(key="f")      tool  c
assistant  ans c
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from sparring import Environment, Message, Task, Trajectory, answer, record_demonstration, tool, tool_call

Split: TypeAlias = Literal["train", "validation", "held_out"]

KEYS = "abcdefghijklmnop"
MAX_HOPS = 3

CORRECT_SHARE = 0.15
"""Share of right demonstrations, for every number of hops. A perfect imitator is right in 0.15 of sampled episodes and
never in greedy ones, because giving up is always the most frequent choice."""
WRONG_SHARE = 0.05
"""Share of demonstrations with the right number of hops but another key. The rest give up one hop too early."""


class PointerChase(Environment):
    """One tool over the links of one task."""

    describe_tools = "prompt"

    def reset(self, task: Task) -> None:
        self._links: Mapping[str, str] = task.fields["links"]

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to."""
        return self._links.get(key, "none")

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return _walk(task, task.fields["hops"])


def reward(trajectory: Trajectory) -> float:
    """Return 1 if the episode ends with `ans` and the correct key, otherwise 0."""
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and last["content"] == f"ans {trajectory.task.fields['answer']}")


def scorer(trajectory: Trajectory) -> float:
    """Return 1 if the task's links, followed again, lead to the key that the last message names."""
    fields, last = trajectory.task.fields, trajectory.messages[-1]
    named = re.fullmatch(r"ans ([a-z])", str(last.get("content")))
    if last.get("role") != "assistant" or named is None:
        return 0.0
    key = fields["start"]
    for _ in range(fields["hops"]):
        key = fields["links"][key]
    return 1.0 if named[1] == key else 0.0


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return tasks("train", num, seed)


def validation_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return tasks("validation", num, seed)


def held_out_tasks(num: int = 128, seed: int = 0) -> list[Task]:
    return tasks("held_out", num, seed)


def pairs(split: Split) -> list[tuple[str, int]]:
    """Return the (start, hops) pairs of a split: 30 for training, 6 for validation, 12 held out. No pair is in two
    splits.

    At least one pair with each start is for training, so that the model knows every key.
    """
    shuffled = random.Random("pairs").sample(KEYS, len(KEYS))
    last_hops = [(start, 1 + index % MAX_HOPS) for index, start in enumerate(shuffled)]
    more_hops = [(start, 1 + (index + 1) % MAX_HOPS) for index, start in enumerate(shuffled)][:2]
    held_out, validation = last_hops[:12], [*last_hops[12:], *more_hops]
    if split == "held_out":
        return held_out
    if split == "validation":
        return validation
    everything = [(start, hops) for start in KEYS for hops in range(1, MAX_HOPS + 1)]
    return [pair for pair in everything if pair not in held_out and pair not in validation]


def tasks(split: Split, num: int, seed: int) -> list[Task]:
    """Return generated tasks, each with its own link table."""
    rng = random.Random(f"{split}-{seed}")
    return [_task(f"{split}-{index}", *rng.choice(pairs(split)), rng) for index in range(num)]


def _task(task_id: str, start: str, hops: int, rng: random.Random) -> Task:
    # The links are one cycle through all keys, so one hop more or less never ends at the right key by chance.
    cycle = rng.sample(KEYS, len(KEYS))
    links = dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    return Task(
        id=task_id,
        messages=({"role": "user", "content": f"find {start} {hops}?"},),
        fields={
            "links": links,
            "start": start,
            "hops": hops,
            "answer": cycle[(cycle.index(start) + hops) % len(cycle)],
        },
    )


def _walk(task: Task, hops: int, named: str | None = None) -> list[Message]:
    """Return the assistant's messages for a walk. The last one names the key that was reached, or `named` if given."""
    key, messages = task.fields["start"], []
    for _ in range(hops):
        messages.append(tool_call("get", key=key))
        key = task.fields["links"][key]
    return [*messages, answer(f"ans {named or key}")]


def mixed_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    """Return conversations of mixed quality on training tasks. A share of `CORRECT_SHARE` has a correct answer."""
    rng = random.Random(f"log-{seed}")
    log = []
    # The tasks have another seed than the training tasks.
    for task in tasks("train", num, seed + 1):
        hops, kind = task.fields["hops"], rng.random()
        if kind < CORRECT_SHARE:
            script = _walk(task, hops)
        elif kind < CORRECT_SHARE + WRONG_SHARE:
            script = _walk(task, hops, named=rng.choice([key for key in KEYS if key != task.fields["answer"]]))
        else:
            script = _walk(task, hops - 1)
        log.append(record_demonstration(PointerChase, task, script))
    return log


def shuffled_reward(trajectory: Trajectory) -> float:
    """As a control, return a random reward that depends only on the episode's id. RL with this reward must not improve
    the policy."""
    return random.Random(trajectory.id).choice((0.0, 1.0))
