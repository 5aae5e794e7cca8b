"""Run supervised steps on demonstrations before RL, because RL amplifies existing behavior and cannot create new behavior."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from sparring.protocols import Learner
from sparring.runtime.cancellable import run_cancellable
from sparring.training.sequences import build_demonstration_batch
from sparring.types import TrainingBatch

Conversation = tuple[tuple[int, ...], tuple[bool, ...]]
"""The token ids of a conversation, and a mask that is True on the assistant's tokens."""


async def run_supervised_steps(
    learner: Learner,
    conversations: Sequence[Conversation],
    *,
    steps: int,
    batch_size: int,
    learning_rate: Callable[[int], float],
    seed: int,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[tuple[int, Mapping[str, float]]]:
    """Minimize the cross-entropy on the demonstrations. For each step, yield its number (starting at 1) and its
    metrics.

    Batches are taken from shuffled passes over the conversations. `learning_rate` returns the rate of a step. If `stop`
    is set, the loop ends early.
    """
    stop = stop or asyncio.Event()
    order, rng = list[int](), random.Random(f"warm-start/{seed}")
    for step in range(1, steps + 1):
        if stop.is_set():
            return
        chosen: list[int] = []
        while len(chosen) < batch_size:
            if not order:
                order = rng.sample(range(len(conversations)), len(conversations))
            chosen.append(order.pop())
        batch = build_demonstration_batch([conversations[index] for index in chosen])
        metrics = await run_cancellable(_supervised_step, learner, batch, learning_rate(step), stop=stop)
        if metrics is None:
            return
        yield step, metrics


def _supervised_step(learner: Learner, batch: TrainingBatch, learning_rate: float) -> dict[str, float]:
    metrics = learner.forward_backward(batch, "cross_entropy", {})
    return metrics | learner.optim_step(learning_rate)
