"""Look-ups that take time: the tool says `wait`, and the clerk asks again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.diagnosis.blind.paths import EARLY_SHARE, path, way
from benchmarks.hacks.links import tasks
from sparring.environments import Environment, answer, record_demonstration, tool, tool_call
from sparring.models.small import small_model
from sparring.types import Message, Task

HOPS = (1, 2)


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    return small_model(seed, patient_log(256), vocabulary_size=400, max_token_length=64, width=64, layers=2)


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return tasks("train", num, seed, hops=HOPS)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    return tasks("validation", num, seed, hops=HOPS)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return tasks("held_out", num, seed, hops=HOPS)


def waits(key: str) -> int:
    """Return how many requests for a key are answered with `wait`: one or two."""
    return 1 + ord(key) % 2


class Queue(Environment):
    describe_tools = "prompt"

    def __init__(self, stuck: str = "") -> None:
        self._stuck = stuck

    def reset(self, task: Task) -> None:
        self._links = task.fields["links"]
        self._asked: Counter[str] = Counter()

    @tool
    def get(self, key: str) -> str:
        """The key that a key links to, or `wait`. Requests for the keys in `stuck` are never served."""
        if key not in self._links:
            return "none"
        self._asked[key] += 1
        return "wait" if key in self._stuck or self._asked[key] <= waits(key) else self._links[key]


def patient(task: Task, rng: random.Random) -> Sequence[Message]:
    """Repeat each request until the answer arrives, and follow the whole path, or one hop less."""
    keys = way(task, task.fields["hops"] - (rng.random() < EARLY_SHARE))
    calls = [tool_call("get", key=key) for key in keys[:-1] for _ in range(waits(key) + 1)]
    return [*calls, answer(path(keys))]


def patient_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    rng = random.Random(f"log-{seed}")
    return [record_demonstration(Queue, task, patient(task, rng)) for task in train_tasks(num, seed + 1)]
