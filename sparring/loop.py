"""The training loop, on one page.

tasks ─▶ scheduler ─▶ groups of trajectories ─▶ advantages ─▶ batch (forest) ─▶ learner ─▶ weights ─▶ engine
             ▲                                                                                         │
             └──────────────────────── slots reopen when the weights are published ◀───────────────────┘
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sparring.algorithms.credit import TurnAdvantages
from sparring.algorithms.reductions import Counts
from sparring.computing import unless_given_up
from sparring.evaluation.agreement import agreement
from sparring.faults import fault_point
from sparring.prices import usage_metrics
from sparring.protocols import Engine, Learner, LossConfig, Tracker
from sparring.rollouts import Curriculum, Scheduler
from sparring.rollouts.metrics import batch_metrics, kind_metrics, rollout_metrics
from sparring.training.handshake import Handshake
from sparring.training.sequences import build_batch
from sparring.types import Task, TrainingBatch, Trajectory, TrajectoryGroup

Played = TypeVar("Played")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """How weights follow from what was played: with the same groups in the same order, the same weights."""

    learner: Learner
    advantages: Callable[[Sequence[TrajectoryGroup]], tuple[TurnAdvantages, Mapping[str, float]]]
    """One advantage for each turn, by trajectory id, and metrics; statistics see each trajectory once."""
    loss_fn: str
    loss_config: LossConfig
    loss_reduction: Callable[[Counts], float]
    needs_every_token: bool
    """Whether tokens without advantage have a gradient too, from an entropy bonus or a divergence."""
    num_passes: int
    learning_rate: Callable[[int], float]
    """Of an optimizer step, counted from 1."""

    def batch(self, groups: Sequence[TrajectoryGroup], advantages: TurnAdvantages) -> TrainingBatch:
        return build_batch(
            groups, advantages, reduction=self.loss_reduction, drop_zero_advantage=not self.needs_every_token
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a step made of its groups."""

    advantages: TurnAdvantages
    batch: TrainingBatch
    metrics: Mapping[str, float]
    times: Mapping[str, float]
    """Seconds, by metric name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the loop needs, finished and wired; `build` makes it."""

    engine: Engine
    learning: Learning
    scheduler: Scheduler
    curriculum: Curriculum
    kind_of: Callable[[Task], str] | None
    """What kind a task is; None without kinds."""
    tracker: Tracker
    observe: Callable[[Sequence[Trajectory]], Mapping[str, float]]
    """What the parts of the run have to say of a step, of which it is given the episodes."""
    prices: Mapping[str, float]
    """By `sparring.prices.PRICES`; what has none costs nothing."""
    success_threshold: float
    """The reward from which an episode counts as right, where groups of equals are told apart."""
    start_step: int
    max_steps: int
    max_seconds: float | None
    validate: Callable[[int], Awaitable[None]]
    """Called after every step, and before the first; decides itself whether it is due."""
    save: Callable[[int], Awaitable[None]]
    """Called after every step; decides itself whether it is due."""
    doing: Callable[[str], object]
    """Told what the loop does next, for who watches."""
    stop: asyncio.Event
    """Set by Ctrl-C or `MultiTurnRLTrainer.stop`: the step under way is given up unless it is nearly over, nothing trained is
    lost."""


async def train(run: Run) -> int:
    """Run optimizer steps until one of the limits, the data, or a stop ends it; return the last step.

    How far play may run ahead of learning is the scheduler's business: with max_steps_off_policy = 0 this same loop
    is synchronous, on-policy training. Raises GivenUp when it was stopped between two passes over a batch: the weights are then
    those of no step.
    """
    began, step = time.monotonic(), run.start_step
    learning = run.learning
    handshake = Handshake(run.engine, learning.learner)
    await run.validate(step)

    async with run.scheduler as scheduler:
        while step < run.max_steps and not _is_late(run, began):
            times: dict[str, float] = {}

            # Play: the oldest finished groups, already rewarded.
            run.doing("waits for episodes")
            with _timed(times, "timing_s/rollout"):
                groups = await unless_stopped(scheduler.next_batch(), run.stop)
            if not groups:
                break
            scheduler.start_ahead()

            # Learn: rewards -> advantages -> forest of token segments -> one optimizer step.
            run.doing("learns")
            learned = await unless_given_up(learn, learning, groups, step + 1, stop=run.stop)
            if learned is None:
                scheduler.cancel(groups)
                break
            step += 1
            times |= learned.times

            # Publish: turns that start from here on use the new weights; the trained groups' slots reopen.
            with _timed(times, "timing_s/policy_update"):
                weights = learning.learner.export_weights()
                await run.engine.load_weights(weights, version=step)
                probed = await handshake.check(weights, step, learned.batch)
            scheduler.release(step)
            # How tasks went decides which are played next.
            run.curriculum.record([*groups, *scheduler.replaced])

            times["timing_s/step"] = sum(times.values())
            play = rollout_metrics(
                groups,
                learned.advantages,
                version=step - 1,
                replaced=scheduler.replaced,
                lost=scheduler.lost,
                success_threshold=run.success_threshold,
            )
            trajectories = [trajectory for group in groups for trajectory in group.trajectories]
            compared = agreement(trajectories, success_threshold=run.success_threshold)
            play |= {f"rollout/agreement/{name}": value for name, value in compared.metrics().items()}
            play |= run.curriculum.metrics() | kind_metrics(groups, run.kind_of, run.success_threshold)
            fault_point("tracker.logging")
            trained = batch_metrics(learned.batch, groups, num_stale=scheduler.num_stale, num_lost=len(scheduler.lost))
            used = usage_metrics(
                computed=play["rollout/tokens/computed"], sampled=play["rollout/tokens/sampled"],
                trained=learned.metrics.get("training/tokens", 0.0), seconds=times["timing_s/step"], prices=run.prices,
            )  # fmt: skip
            place = {"training/global_step": float(step), "training/epoch": run.curriculum.epoch}
            said = {**run.observe(trajectories), **learned.metrics, **probed}
            numbers = {**play, **trained, **said, **times, **used, **place}
            run.tracker.log_metrics(step, numbers)
            run.tracker.log_groups(step, groups, split="train")
            await run.save(step)
            await run.validate(step)
    return step


def learn(learning: Learning, groups: Sequence[TrajectoryGroup], step: int) -> Learned:
    """The optimizer steps on what a step's groups teach."""
    times: dict[str, float] = {}
    with _timed(times, "timing_s/advantages"):
        advantages, measured = learning.advantages(groups)
    batch = learning.batch(groups, advantages)
    with _timed(times, "timing_s/training"):
        metrics = optimize(learning, batch, step)
    return Learned(advantages=advantages, batch=batch, metrics={**measured, **metrics}, times=times)


def optimize(learning: Learning, batch: TrainingBatch, step: int) -> dict[str, float]:
    """The optimizer steps on one batch. One in which no turn has an advantage leaves the weights as they are.

    Metrics are those of the first pass, when the policy is still the one that every token was meant for; what later
    passes add is under `training/last_pass/`.
    """
    if batch.num_trained_tokens == 0:
        return {"training/steps_without_signal": 1.0}
    is_compared = learning.num_passes > 1 and learning.loss_config.get("policy_ratio") == "three_policy"
    old_M = learning.learner.logprobs(batch) if is_compared else None
    metrics: dict[str, float] = {"training/steps_without_signal": 0.0}
    for number in range(learning.num_passes):
        learned = learning.learner.forward_backward(batch, learning.loss_fn, learning.loss_config, old_M)
        learned |= learning.learner.optim_step(learning.learning_rate(step))
        if number == 0:
            metrics |= learned
        elif number == learning.num_passes - 1:
            metrics |= {
                f"training/last_pass/{name.removeprefix('training/')}": value for name, value in learned.items()
            }
    return metrics


def _is_late(run: Run, began: float) -> bool:
    return run.stop.is_set() or (run.max_seconds is not None and time.monotonic() - began >= run.max_seconds)


async def unless_stopped(play: Awaitable[Played], stop: asyncio.Event) -> Played | None:
    """What `play` gives, or None when the run is stopped first; the play is then cancelled and over."""
    playing, stopping = asyncio.ensure_future(play), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return playing.result() if playing.done() else None
    finally:
        for task in (playing, stopping):
            task.cancel()
        await asyncio.gather(playing, stopping, return_exceptions=True)


class _timed:
    """Adds the seconds spent in a block to `times[name]`."""

    def __init__(self, times: dict[str, float], name: str) -> None:
        self._times, self._name = times, name

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_exception: object) -> None:
        self._times[self._name] = self._times.get(self._name, 0.0) + time.monotonic() - self._began
