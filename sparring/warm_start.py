"""Supervised steps on demonstrations before RL, because RL amplifies what the policy does and does not create it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence

from sparring.computing import unless_given_up
from sparring.protocols import Learner
from sparring.training.sequences import demonstration_batch
from sparring.types import TrainingBatch

Conversation = tuple[tuple[int, ...], tuple[bool, ...]]
"""Ids of a conversation and a mask that is True on what the assistant says."""


async def warm_start(
    learner: Learner,
    conversations: Sequence[Conversation],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    max_seconds: float | None = None,
    on_step: Callable[[int, Mapping[str, float]], None] | None = None,
    stop: asyncio.Event | None = None,
) -> int:
    """Minimise cross-entropy on the demonstrations for `steps` steps, or until `max_seconds` or `stop`.

    Batches run through shuffled passes over the conversations. Returns the number of steps done.
    """
    stop = stop or asyncio.Event()
    began, order, rng = time.monotonic(), list[int](), random.Random(f"warm-start/{seed}")
    for step in range(1, steps + 1):
        is_late = max_seconds is not None and time.monotonic() - began >= max_seconds
        if is_late or stop.is_set():
            return step - 1
        chosen: list[int] = []
        while len(chosen) < batch_size:
            if not order:
                order = rng.sample(range(len(conversations)), len(conversations))
            chosen.append(order.pop())
        batch = demonstration_batch([conversations[index] for index in chosen])
        metrics = await unless_given_up(_supervised_step, learner, batch, learning_rate, stop=stop)
        if metrics is None:
            return step - 1
        if on_step is not None:
            on_step(step, metrics)
    return steps


def _supervised_step(learner: Learner, batch: TrainingBatch, learning_rate: float) -> dict[str, float]:
    metrics = learner.forward_backward(batch, "cross_entropy", {})
    return metrics | learner.optim_step(learning_rate)
