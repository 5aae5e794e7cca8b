"""Shared code of the blind cases: the keys of `benchmarks.hacks.links`, the path along them as the answer, and a tiny
model.

user       find b 2?
assistant  get(key="b")      tool  f
assistant  get(key="f")      tool  c
assistant  path b f c
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.hacks.links import Split, clerk_log, tasks, walk
from sparring.environments import answer
from sparring.models.small import small_model
from sparring.types import Message, Task, Trajectory

HOPS = (1, 2, 3)
EARLY_SHARE = 0.5
"""Of the clerks: those who stop a hop too early."""


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Build a model for which a tool call is about four tokens, and a key is one token."""
    return small_model(seed, mixed_log(256), vocabulary_size=400, max_token_length=64, width=64, layers=2)


def way(task: Task, hops: int | None = None) -> list[str]:
    """Return the keys from the start along this many links, or along all links of the task if no number is given."""
    keys = [task.fields["start"]]
    for _ in range(task.fields["hops"] if hops is None else hops):
        keys.append(task.fields["links"][keys[-1]])
    return keys


def path(keys: Sequence[str]) -> str:
    return " ".join(["path", *keys])


def traced(task: Task, hops: int | None = None) -> list[Message]:
    """Follow this many hops, or all hops of the task if no number is given, and name the path."""
    hops = int(task.fields["hops"]) if hops is None else hops
    return [*walk(task, hops)[0], answer(path(way(task, hops)))]


def last_words(trajectory: Trajectory) -> str:
    """Return the answer, or an empty text if the episode ended without one."""
    last = trajectory.messages[-1]
    return last["content"] if last["role"] == "assistant" else ""


def exact(trajectory: Trajectory) -> float:
    """Return 1 for the whole path and nothing else."""
    return float(last_words(trajectory) == path(way(trajectory.task)))


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return tasks("train", num, seed, hops=HOPS)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    return tasks("validation", num, seed, hops=HOPS)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return tasks("held_out", num, seed, hops=HOPS)


def in_shares(split: Split, shares: Mapping[int, float], num: int, seed: int) -> list[Task]:
    """Return tasks with these numbers of hops, in approximately these shares and in random order."""
    kinds = random.Random(f"shares-{split}-{seed}").choices(list(shares), list(shares.values()), k=num)
    pool = tasks(split, 16 * num, seed, hops=tuple(shares))
    of_kind = {hops: iter([task for task in pool if task.fields["hops"] == hops]) for hops in shares}
    return [replace(next(of_kind[hops]), id=f"{split}-{index}") for index, hops in enumerate(kinds)]


def log_of(script: Callable[[Task, random.Random], Sequence[Message]], num: int, seed: int) -> list[list[Message]]:
    """Return conversations of clerks who follow the script, on tasks generated with a different seed than the training
    tasks."""
    return clerk_log(script, train_tasks(num, seed + 1), seed)


def hasty(task: Task, rng: random.Random) -> list[Message]:
    """Follow the whole path, or one hop less."""
    return traced(task, task.fields["hops"] - (rng.random() < EARLY_SHARE))


def mixed_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return log_of(hasty, num, seed)
