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
from typing import Protocol, TypeVar

from sparring.algorithms.credit import StepAdvantages, TurnAdvantages
from sparring.algorithms.reductions import Counts
from sparring.evaluation.agreement import agreement
from sparring.metering.budget import Budget
from sparring.metering.prices import usage_metrics
from sparring.protocols import Engine, Learner, LossConfig, Tracker
from sparring.rollouts import Curriculum, Scheduler
from sparring.rollouts.metrics import batch_metrics, kind_metrics, rollout_metrics
from sparring.runtime.cancellable import run_cancellable
from sparring.runtime.faults import fault_point
from sparring.training.handshake import Handshake
from sparring.training.sequences import build_batch
from sparring.types import Task, TrainingBatch, Trajectory, TrajectoryGroup

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """The rule by which groups change the weights. The same groups in the same order always produce the same
    weights."""

    learner: Learner
    advantages: Callable[[Sequence[TrajectoryGroup]], StepAdvantages]
    loss_fn: str
    loss_config: LossConfig
    loss_reduction: Callable[[Counts], float]
    needs_every_token: bool
    """Whether tokens of turns without an advantage also have a gradient, from a teacher, an entropy bonus or a
    divergence."""
    num_passes: int
    learning_rate: Callable[[int], float]
    """Returns the learning rate of an optimizer step. Steps are counted from 1."""

    def batch(self, groups: Sequence[TrajectoryGroup], advantages: StepAdvantages) -> TrainingBatch:
        return build_batch(
            groups,
            advantages.turns,
            token_advantages=advantages.tokens,
            reduction=self.loss_reduction,
            drop_zero_advantage=not self.needs_every_token,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """The result of the optimizer steps on one step's groups."""

    advantages: TurnAdvantages
    batch: TrainingBatch
    metrics: Mapping[str, float]
    times: Mapping[str, float]
    """The seconds spent on each part, by metric name."""


class StepHooks(Protocol):
    """The actions between the steps of a training run. `TrainingRun` implements all of them; a test implements only
    those it needs.

    Each method determines for itself whether it is due. `validate` is also called before the first step.
    """

    async def validate(self, step: int) -> None:
        """Evaluate the policy of a step, and run the detectors on the result. Raises the same errors as
        `run_detectors`."""
        ...

    async def run_detectors(self, step: int) -> None:
        """Run the detectors. Raises GateError if a finding stops the run."""
        ...

    async def save(self, step: int) -> None:
        """Save a checkpoint of a step, and record that it is done."""
        ...

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Return the metrics of everything around the loop, for a step that trained on these episodes."""
        ...

    def show_activity(self, activity: str) -> None:
        """Show the user what the loop does next."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The parts that the loop uses; `TrainingRun` builds it."""

    engine: Engine
    update_rule: UpdateRule
    scheduler: Scheduler
    curriculum: Curriculum
    hooks: StepHooks
    tracker: Tracker
    kind_of: Callable[[Task], str] | None
    """Returns the kind of a task. None if the tasks have no kinds."""
    prices: Mapping[str, float]
    """The prices by the names in `sparring.metering.prices.PRICES`. A missing price is 0."""
    success_threshold: float
    """The lowest reward of a successful episode. It separates groups in which all succeed from groups in which all
    fail."""
    first_step: int
    """The step of the initial weights."""
    max_steps: int
    max_seconds: float | None
    budget: Budget
    """The spending limit. It ends the run before a step that would cost more than the recipe allows."""
    stop: asyncio.Event
    """Set by Ctrl-C or `MultiTurnRLTrainer.stop`. The step in progress is abandoned unless it is nearly finished. No
    finished step is lost."""


async def train(run: Run) -> int:
    """Run optimizer steps until a limit is reached, the data is exhausted or a stop is requested. Return the last step.

    The scheduler controls how far rollouts may run ahead of learning: with max_steps_off_policy = 0, this loop is
    synchronous, on-policy training. Raises Cancelled if the run is stopped between two passes over a batch; the weights
    then do not belong to any step. Raises GateError if a detector stops the run.
    """
    start_time, step = time.monotonic(), run.first_step
    hooks, learner = run.hooks, run.update_rule.learner
    handshake = Handshake(run.engine, learner)
    await hooks.validate(step)

    async with run.scheduler as scheduler:
        while step < run.max_steps and not _is_over(run, start_time):
            times: dict[str, float] = {}

            # Roll out: the oldest finished groups, already rewarded.
            hooks.show_activity("waits for episodes")
            with _timed(times, "timing_s/rollout"):
                groups = await unless_stopped(scheduler.next_batch(), run.stop)
            if not groups:
                break
            scheduler.start_ahead()

            # Learn: rewards -> advantages -> forest of token segments -> one optimizer step.
            hooks.show_activity("learns")
            update = await run_cancellable(learn, run.update_rule, groups, step + 1, stop=run.stop)
            if update is None:
                scheduler.cancel(groups)
                break
            step += 1
            times |= update.times

            # Publish: turns that start from here on use the new weights; the trained groups' slots reopen.
            with _timed(times, "timing_s/policy_update"):
                weights = learner.export_weights()
                await run.engine.load_weights(weights, version=step)
                probed = await handshake.check(weights, step, update.batch)
            scheduler.release(step)
            # The results on the tasks decide which tasks come next.
            run.curriculum.record(groups, scheduler.replaced)

            # Log, run the detectors, save, evaluate.
            times["timing_s/step"] = sum(times.values())
            metrics = step_metrics(run, step, groups, update, {**probed, **times})
            run.tracker.log_metrics(step, metrics)
            run.budget.add(metrics.get("usage/cost", 0.0))
            run.tracker.log_groups(step, groups, split="train")
            await hooks.run_detectors(step)
            await hooks.save(step)
            await hooks.validate(step)
    return step


def learn(update_rule: UpdateRule, groups: Sequence[TrajectoryGroup], step: int) -> UpdateResult:
    """Take the optimizer steps on one step's groups."""
    times: dict[str, float] = {}
    with _timed(times, "timing_s/advantages"):
        advantages = update_rule.advantages(groups)
    batch = update_rule.batch(groups, advantages)
    with _timed(times, "timing_s/training"):
        metrics = optimize(update_rule, batch, step)
    metrics = {**advantages.metrics, **metrics}
    return UpdateResult(advantages=advantages.average(), batch=batch, metrics=metrics, times=times)


def optimize(update_rule: UpdateRule, batch: TrainingBatch, step: int) -> dict[str, float]:
    """Take the optimizer steps on one batch. A batch in which no turn has an advantage leaves the weights unchanged.

    The metrics are those of the first pass, before the weights change. The metrics of the last pass have the
    prefix `training/last_pass/`.
    """
    if batch.num_trained_tokens == 0:
        return {"training/steps_without_signal": 1.0}
    learner, num_passes = update_rule.learner, update_rule.num_passes
    is_compared = num_passes > 1 and update_rule.loss_config.get("policy_ratio") == "three_policy"
    old_logprobs = learner.logprobs(batch) if is_compared else None
    metrics: dict[str, float] = {"training/steps_without_signal": 0.0}
    for number in range(num_passes):
        measured = learner.forward_backward(batch, update_rule.loss_fn, update_rule.loss_config, old_logprobs)
        measured |= learner.optim_step(update_rule.learning_rate(step))
        if number == 0:
            metrics |= measured
        elif number == num_passes - 1:
            metrics |= {
                f"training/last_pass/{name.removeprefix('training/')}": value for name, value in measured.items()
            }
    return metrics


def step_metrics(
    run: Run, step: int, groups: Sequence[TrajectoryGroup], update: UpdateResult, measured: Mapping[str, float]
) -> dict[str, float]:
    """Return all metrics of a step. `measured` contains the times and other values that the loop measured."""
    scheduler = run.scheduler
    rollout = rollout_metrics(
        groups,
        update.advantages,
        version=step - 1,
        replaced=scheduler.replaced,
        lost=scheduler.lost,
        success_threshold=run.success_threshold,
    )
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    compared = agreement(trajectories, success_threshold=run.success_threshold)
    rollout |= {f"rollout/agreement/{name}": value for name, value in compared.metrics().items()}
    rollout |= run.curriculum.metrics() | kind_metrics(groups, run.kind_of, run.success_threshold)
    fault_point("tracker.logging")
    num_computed = update.metrics.get("training/tokens", 0.0)
    trained = batch_metrics(
        update.batch,
        groups,
        num_computed=num_computed,
        num_stale=scheduler.num_stale,
        num_lost=len(scheduler.lost),
    )
    used = usage_metrics(
        computed=rollout["rollout/tokens/computed"],
        sampled=rollout["rollout/tokens/sampled"],
        trained=num_computed,
        seconds=measured["timing_s/step"],
        prices=run.prices,
    )
    place = {"training/global_step": float(step), "training/epoch": run.curriculum.epoch}
    around = run.hooks.measure(trajectories)
    return {**rollout, **trained, **around, **update.metrics, **measured, **used, **place}


def _is_over(run: Run, start_time: float) -> bool:
    is_late = run.max_seconds is not None and time.monotonic() - start_time >= run.max_seconds
    return run.stop.is_set() or is_late or run.budget.is_used_up


async def unless_stopped(rollouts: Awaitable[Result], stop: asyncio.Event) -> Result | None:
    """Return the result of `rollouts`, or None if the run is stopped first. In that case, `rollouts` has been cancelled
    and has ended."""
    running, stopping = asyncio.ensure_future(rollouts), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)


class _timed:
    """Adds the seconds spent in a block to `times[name]`."""

    def __init__(self, times: dict[str, float], name: str) -> None:
        self._times, self._name = times, name

    def __enter__(self) -> None:
        self._start_time = time.monotonic()

    def __exit__(self, *_exception: object) -> None:
        self._times[self._name] = self._times.get(self._name, 0.0) + time.monotonic() - self._start_time
