"""A tool that takes as long as real tools do, and policies that need some or next to no computation.

user       find b 3
assistant  get(key="b")      tool  f 2
assistant  get(key="f")      tool  c 1
assistant  get(key="c")      tool  a 0
assistant  ans a
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from sparring import Environment, Message, Task, Trajectory, answer, record_demonstration, tool, tool_call
from sparring.models.small import small_model

KEYS = "abcdefghijklmnop"
LEAST_CALLS, MOST_CALLS = 3, 6
MEDIAN_SECONDS, SIGMA = 1.0, 0.5
"""The lognormal distribution of a call's seconds, before they are scaled."""
SLOW_SHARE, SLOW_FACTOR = 0.05, 10.0
"""One call in twenty takes ten times as long."""

_opened: Counter[str] = Counter()
"""The episodes of each task that were opened in this process."""


class Waiting(Environment):
    """One tool that follows links. Its seconds depend only on the task, on how often the task was opened before and on the
    number of the call, so that they are the same in every setting."""

    describe_tools = "prompt"

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale

    def reset(self, task: Task) -> None:
        self._links, self._left = task.fields["links"], task.fields["calls"]
        self._seconds = seconds(task.id, _opened[task.id])
        _opened[task.id] += 1

    @tool
    async def get(self, key: str) -> str:
        """The key that a key links to, and how many links are left."""
        await asyncio.sleep(self._scale * next(self._seconds))
        self._left -= 1
        return f"{self._links.get(key, 'a')} {max(0, self._left)}"


def seconds(task_id: str, episode: int) -> Iterator[float]:
    """Yield the seconds of an episode's calls, before they are scaled."""
    rng = random.Random(f"{task_id}/{episode}")
    while True:
        slow = SLOW_FACTOR if rng.random() < SLOW_SHARE else 1.0
        yield slow * rng.lognormvariate(0.0, SIGMA) * MEDIAN_SECONDS


def reward(trajectory: Trajectory) -> float:
    """Return a random reward, so that every step learns from nearly all episodes and the policy stays as it is."""
    return random.Random(trajectory.id).random()


def tasks(num: int, seed: int, split: str = "train") -> list[Task]:
    rng = random.Random(f"{split}-{seed}")
    return [_task(f"{split}-{seed}-{index}", rng) for index in range(num)]


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return tasks(num, seed)


def validation_tasks() -> list[Task]:
    return tasks(1, 0, "validation")


def held_out_tasks() -> list[Task]:
    return tasks(1, 0, "held-out")


def demonstrations(num: int = 2048, seed: int = 0) -> list[list[Message]]:
    """Return conversations that follow every link. Their tool does not wait."""
    return [record_demonstration(lambda: Waiting(scale=0.0), task, _walk(task)) for task in tasks(num, seed, "log")]


def build(seed: int) -> tuple[Any, Any]:
    """Return a model whose training takes about a third as long as the slowest episode of a batch."""
    return small_model(seed, _texts(), width=256, layers=4, max_token_length=8)


def build_small(seed: int) -> tuple[Any, Any]:
    """Return a model whose training takes next to no time."""
    return small_model(seed, _texts(), width=64, layers=2, max_token_length=8)


def _task(task_id: str, rng: random.Random) -> Task:
    cycle = rng.sample(KEYS, len(KEYS))
    links = dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    calls = rng.randint(LEAST_CALLS, MOST_CALLS)
    message = {"role": "user", "content": f"find {cycle[0]} {calls}"}
    return Task(id=task_id, messages=(message,), fields={"links": links, "start": cycle[0], "calls": calls})


def _walk(task: Task) -> Sequence[Message]:
    key, messages = task.fields["start"], list[Message]()
    for _ in range(task.fields["calls"]):
        messages.append(tool_call("get", key=key))
        key = task.fields["links"][key]
    return [*messages, answer(f"ans {key}")]


def _texts() -> list[str]:
    texts = ["user\n", "tool\n", "assistant\n", "system\n", "\n", "error: "]
    for key in KEYS:
        call = f'<tool_call>{{"name":"get","arguments":{{"key":"{key}"}}}}</tool_call>'
        texts += [
            f"assistant\n{call}",
            call,
            f"tool\n{key}",
            f"assistant\nans {key}",
            f"ans {key}",
            f"user\nfind {key} 1",
        ]
    return texts
