"""Run the training of a run: its start, the actions between its steps, and its end."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import final

from sparring import loop
from sparring.assembly import (
    TrainingParts,
    build_scheduler,
    build_trials,
    load_checkpoint_weights,
    load_curriculum,
    load_demonstrations,
    load_into_engine,
)
from sparring.assembly.update_rule import build_update_rule
from sparring.config import Config, find_warnings
from sparring.config.sections import WarmStartSection
from sparring.copies.copier import Copier
from sparring.detectors.runner import DetectorRunner
from sparring.errors import GateError
from sparring.evaluation.claim import Claim
from sparring.evaluation.evaluation import Evaluation, Row, evaluate
from sparring.evaluation.of_run import claim_of_run
from sparring.evaluation.report import FORMAT
from sparring.evaluation.tables import result_table
from sparring.findings import Severity
from sparring.metering.budget import Budget
from sparring.metering.usage import read_usage
from sparring.pages.html import table, text
from sparring.protocols import Tracker
from sparring.rollouts import GroupPlan
from sparring.rollouts.actions import StateVisits
from sparring.rollouts.resumption import Kept
from sparring.run_folders import RunFolder
from sparring.run_folders.history import History
from sparring.run_folders.presence import Presence
from sparring.run_folders.run_folder import WARM_START
from sparring.run_folders.stored import RESUMED, read_rows
from sparring.runtime.cancellable import Cancelled
from sparring.runtime.faults import fault_point
from sparring.runtime.logs import get_logger
from sparring.tracking import Console, FanOut
from sparring.tracking.console import ProgressCallback
from sparring.tracking.process import resident_bytes
from sparring.training import checkpoints
from sparring.training.schedule import learning_rate
from sparring.training.warm_start import run_supervised_steps
from sparring.training_run.checkpoint_writer import Saver, save_announced, training_state
from sparring.training_run.loading import LoadedRun
from sparring.training_run.reactions import REACTIONS, Incident
from sparring.types import Json, Sampling, Trajectory, TrajectoryGroup

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainResult:
    """The outcome of a finished `train()`."""

    run: Path
    step: int
    status: str
    validations: Mapping[int, Evaluation]
    train_seconds: float
    """Wall time of the RL steps, including validation."""

    def __repr__(self) -> str:
        head = f"<TrainResult {self.run}: {self.status} after step {self.step}, {self.train_seconds:.0f} s"
        return "\n  ".join([head, *map(repr, self.validations.values())]) + ">"

    def _repr_html_(self) -> str:
        """Return the validations and the claim as markup, which notebooks show."""
        head = f"<p>{text(self.run)}: {text(self.status)} after step {self.step}, {self.train_seconds:.0f} s</p>"
        rows = list(self.validations.values())
        shown = table(*result_table(rows, title="validation")) if rows else ""
        return head + shown + "".join(f"<p>{text(line)}</p>" for line in self.claim.lines())

    @property
    def claim(self) -> Claim:
        """The claim that the run's evaluations support so far. Without a held-out evaluation, the claim is based on the
        validation results."""
        return claim_of_run(RunFolder(self.run))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The starting point of training."""

    is_resumed: bool
    checkpoint: Path | None
    """The checkpoint of a resumed run; None if it has none yet."""
    model_weights: Path | None
    """The checkpoint whose weights a new run starts from."""


@final
class TrainingRun:
    """The training of a run, with the state that its parts share. The loop calls this object between the steps.

        result = await TrainingRun(loaded, start, tracker=tracker, console=console, copier=copier, stop=stop).train()

    The object must be created in the event loop in which it trains. `stop` ends it with a checkpoint.
    """

    def __init__(
        self,
        loaded: LoadedRun[TrainingParts],
        start: Start,
        *,
        tracker: Tracker,
        console: Console,
        copier: Copier | None,
        stop: asyncio.Event,
    ) -> None:
        parts, folder, config = loaded.parts, loaded.folder, loaded.parts.config
        self._parts, self._folder, self._path, self._config = parts, folder, loaded.path, config
        self._start, self._console, self._copier, self._stop = start, console, copier, stop
        # The ledger also contains rollouts that are not in any checkpoint, so each resumption labels its own rollouts.
        label = f"r{len(parts.ledger.rollouts())}-" if start.is_resumed else ""
        self._curriculum = load_curriculum(config, parts.tasks.train, label=label)
        self._kept = Kept(parts.ledger, max_steps_off_policy=config.rollout.max_steps_off_policy)
        """Finished episodes of a resumed run; unused in deterministic rounds, which run a whole step again."""
        self._scheduler = build_scheduler(parts, self._plans(), version=0, on_group=console.group_played)
        self._saver = Saver(parts.learner, parts.ledger, folder, schedule=config.schedule, say=console.announced)
        trials = build_trials(config, parts.recipe_dir, loop=asyncio.get_running_loop())
        history = History(success_threshold=config.evaluation.success_threshold, trials=trials)
        self._presence = Presence(loaded.path)
        self._watch = DetectorRunner(history, parts.detectors)
        self._tracker = FanOut([tracker, self._watch])
        self._state_visits = StateVisits()
        self._validations: dict[int, Evaluation] = {}
        self._first_step = 0
        self._outstanding: tuple[GroupPlan, ...] = ()
        """Groups that had started but were not trained at the checkpoint. They run again first."""

    async def train(self) -> TrainResult:
        """Train to the end and save the last step.

        Raises GateError if a detector or the first validation ends the run, DiskError if the last checkpoint cannot be
        written, ServiceError if the run's folder is gone, and the errors of environments and services.
        """
        try:
            result = await self._train()
        except Exception:
            self._presence.require()  # the cause of many other errors
            raise
        self._presence.require()
        return result

    async def _train(self) -> TrainResult:
        await self.restore()
        if not await self._prepare_weights():
            return self._result(step=0, seconds=0.0)
        weights = self._parts.learner.export_weights()
        await load_into_engine(self._parts, self._folder, weights, version=self._first_step)
        self._scheduler.release(self._first_step)
        await self._log_start()
        start_time = time.monotonic()
        last = await self._run_loop()
        fault_point("run.closing")
        seconds = time.monotonic() - start_time
        self._warn_of_early_end(last)
        await self.validate(last, is_last=True)
        return self._result(step=last, seconds=seconds)

    async def restore(self) -> None:
        """Restore learner, curriculum, ledger and detectors from the checkpoint that a resumed run starts from.

        Raises DiskError if the disk has no room for future checkpoints.
        """
        checkpoint, parts = self._start.checkpoint, self._parts
        if checkpoint is not None:
            state = checkpoints.load(checkpoint, parts.learner)
            self._first_step = int(state["step"])
            if self._first_step > 0:  # before the first step there is at most a warm start
                self._saver.newest = self._first_step
                self._curriculum.restore(state["curriculum"])
                self._outstanding = tuple(self._curriculum.played_again(state["outstanding"]))
        if self._first_step < self._config.schedule.max_steps:
            (await asyncio.to_thread(self._saver.room, self._first_step)).check()
        if not self._start.is_resumed:
            return
        await self._rewind_ledger()
        if checkpoint is None:
            # A trainer that continues in the same process may have weights that are not in any checkpoint.
            parts.learner.load_weights(parts.initial_weights)
        await asyncio.to_thread(self._watch.resume, self._folder.path, self._first_step)

    async def validate(self, step: int, *, is_last: bool = False) -> None:
        """Evaluate the policy on the validation tasks if validation is due, and run the detectors on the result.

        Raises the errors of `run_detectors`, and GateError if no episode of the untrained policy succeeded.
        """
        schedule = self._config.schedule
        is_periodic = schedule.val_every > 0 and step % schedule.val_every == 0
        is_due = is_last or is_periodic or step in (self._first_step, schedule.max_steps)
        if not self._parts.tasks.validation or step in self._validations or not is_due or self._stop.is_set():
            return
        evaluation = await loop.unless_stopped(self._evaluate(step), self._stop)
        if evaluation is None:
            return
        self._validations[step] = evaluation
        self._saver.validated(step, evaluation.score.mean)
        await self.run_detectors(step)
        if step == 0 and schedule.max_steps > 0:
            check_baseline(evaluation, self._config, self._path, self._start.model_weights)

    async def run_detectors(self, step: int) -> None:
        """Log the detectors' findings after a step, and react to errors as the recipe specifies.

        Raises GateError if the reaction stops the run.
        """
        # A run's status must never be ahead of its ledger, because resuming compares the two.
        await asyncio.to_thread(self._parts.ledger.flush)
        findings = await asyncio.to_thread(self._watch.findings)
        for finding in findings:
            self._tracker.log_finding(finding.as_json())
        error = next((one for one in findings if one.severity is Severity.ERROR), None)
        if error is None:
            return
        await self._saver.settled()
        await REACTIONS[self._config.detectors.reaction](
            Incident(
                finding=error,
                step=step,
                first_step=self._watch.first_step(error.rule),
                parts=self._parts,
                folder=self._folder,
                console=self._console,
                stop=self._stop,
                save=partial(self._save_now, step),
            )
        )

    async def save(self, step: int) -> None:
        """Save a checkpoint if one is due, and record the step as done. Raises ServiceError if the run's folder is gone."""
        self._presence.require()
        losses = self._scheduler.budget.finding(step), self._parts.collector.losses.finding(step)
        copy = self._copier.finding(step) if self._copier is not None else None
        for finding in (*losses, copy, await asyncio.to_thread(self._saver.shortage, step)):
            if finding is not None:
                self._tracker.log_finding(finding.as_json())
        every = self._config.schedule.save_every
        if self._saver.is_due or (every and step % every == 0):
            start_time = time.monotonic()
            await self._saver.begin(step, self._state(step))
            self._tracker.log_metrics(step, {"timing_s/save_checkpoint": time.monotonic() - start_time})
        self._folder.set_status("running", step=step)
        if self._folder.stop_requested():
            self._stop.set()

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Return the metrics of the engine, the collector and the process since the last step."""
        return {
            **self._parts.engine.metrics(),
            **self._parts.collector.tally.take(),
            **self._state_visits.metrics(trajectories),
            **(self._copier.metrics() if self._copier is not None else {}),
            "system/memory_rss_bytes": float(resident_bytes()),
        }

    def show_activity(self, activity: str) -> None:
        """Show the user what the loop does next."""
        self._console.doing(activity)

    async def _run_loop(self) -> int:
        """Run the steps, save a checkpoint of the last one, and return the step of the weights on the disk."""
        config, parts = self._config, self._parts
        run = loop.Run(
            engine=parts.engine,
            update_rule=build_update_rule(parts),
            scheduler=self._scheduler,
            curriculum=self._curriculum,
            hooks=self,
            tracker=self._tracker,
            kind_of=parts.kind_of,
            prices=config.tracking.prices,
            success_threshold=config.evaluation.success_threshold,
            first_step=self._first_step,
            max_steps=config.schedule.max_steps,
            max_seconds=config.limits.max_seconds,
            budget=self._budget(),
            stop=self._stop,
        )
        progress = self._console.training(
            config.schedule.max_steps,
            start=self._first_step,
            episodes=config.batch.global_batch_size * config.batch.group_size,
        )
        try:
            async with self._saver:
                with progress:
                    last = await loop.train(run)
                self._kept.close()
                await self._save_now(last)
        except Cancelled:
            # The weights are between two steps, so the run continues from the last checkpoint.
            return self._saver.newest or 0
        return last

    def _warn_of_early_end(self, last: int) -> None:
        """Warn that the data ended before the last step."""
        schedule, epoch = self._config.schedule, self._curriculum.epoch
        is_over = epoch >= schedule.max_epochs and not self._scheduler.outstanding
        if last >= schedule.max_steps or not is_over or self._stop.is_set():
            return
        skipped = self._curriculum.metrics().get("rollout/curriculum/passed_over", 0.0)
        logger.warning(
            "the data ended after step %d of %d: the tasks were offered schedule.max_epochs = %d times on average%s. Raise "
            "schedule.max_epochs for more steps.",
            last,
            schedule.max_steps,
            schedule.max_epochs,
            f", and {skipped:.0%} of the offers were skipped (curriculum.select)" if skipped else "",
        )

    def _budget(self) -> Budget:
        """Return the budget of the run, including the cost of its earlier steps."""
        prices, folder = self._config.tracking.prices, self._folder.path

        def count_endpoints() -> float:
            return sum(one.cost(prices) or 0.0 for one in read_usage(folder))

        metrics = folder / "metrics.jsonl"
        # This includes steps that a resumed run computes again, because they also cost money.
        rows = read_rows(metrics, is_growing=True) if metrics.is_file() else ()
        earlier = sum(row["metrics"].get("usage/cost", 0.0) for _, row in rows)
        return Budget(self._config.limits.max_cost, spent=earlier, endpoint_cost=count_endpoints)

    def _plans(self) -> Iterator[GroupPlan]:
        """Yield the groups in the order of the data. Use this method only after the run is restored."""
        plans = chain(self._outstanding, self._curriculum)
        yield from plans if self._parts.is_deterministic else self._kept.plans(plans)

    async def _save_now(self, step: int) -> None:
        await self._saver.save(step, self._state(step))

    def _state(self, step: int) -> dict[str, Json]:
        return training_state(step, self._curriculum, self._scheduler.outstanding)

    async def _rewind_ledger(self) -> None:
        """Rewind the ledger to the checkpoint, so that later steps do not count as trained."""
        ledger, checkpoint, name = self._parts.ledger, self._start.checkpoint, ""
        if checkpoint is not None:
            name = checkpoints.get_original_name(checkpoint)
            # The process may have died between writing the checkpoint and publishing it.
            published = ledger.publish_nowait(self._first_step, name, checkpoints.hash_checkpoint(checkpoint))
            await asyncio.wrap_future(published)
        keep: set[str] = set()
        if not self._parts.is_deterministic:
            keep = await asyncio.to_thread(self._kept.find, self._first_step)
        await asyncio.wrap_future(ledger.rewind_nowait(self._first_step, name, keep=keep))

    async def _prepare_weights(self) -> bool:
        """Load the first weights of a run without a checkpoint. Return False if a stop ended the warm start.

        In this case, nothing is saved, and a resumed run restarts the warm start.
        """
        learner, source = self._parts.learner, self._start.model_weights
        if self._start.checkpoint is not None:
            return True
        if source is not None:
            learner.load_weights(load_checkpoint_weights(source, self._parts.policy))
            # The weights are saved because a resumed run does not know where they came from.
            await self._save_now(0)
        elif self._config.warm_start is not None:
            return await self._warm_start(self._config.warm_start)
        return True

    async def _warm_start(self, section: WarmStartSection) -> bool:
        """Imitate the demonstrations and save the result. Return False, and save nothing, if a stop ended the imitation
        early."""
        learner = self._parts.learner
        conversations = await asyncio.to_thread(
            load_demonstrations, self._parts, section.num_demonstrations, section.demonstrations
        )
        rate = partial(
            learning_rate,
            peak=section.learning_rate,
            schedule=section.learning_rate_schedule,
            warmup_steps=0,
            max_steps=section.steps,
        )
        done = 0
        with self._console.steps("warm start", section.steps) as progress:
            async for step, metrics in run_supervised_steps(
                learner,
                conversations,
                steps=section.steps,
                batch_size=section.batch_size,
                learning_rate=rate,
                seed=self._config.run.seed,
                stop=self._stop,
            ):
                progress(metrics)
                done = step
        if done < section.steps:
            return False
        learner.reset_optimizer()
        state = await asyncio.to_thread(learner.export_state)
        await asyncio.to_thread(
            save_announced, self._parts.ledger, self._folder.checkpoints, 0, WARM_START, state, {"step": 0}
        )
        return True

    async def _log_start(self) -> None:
        self._console.warned(find_warnings(self._config))
        if self._start.is_resumed:
            self._tracker.log_metrics(self._first_step, {RESUMED: 1.0})
        shortage = await asyncio.to_thread(self._saver.shortage, self._first_step)
        if shortage is not None:
            self._tracker.log_finding(shortage.as_json())

    async def _evaluate(self, step: int) -> Evaluation:
        parts, section = self._parts, self._config.evaluation
        tasks = parts.tasks.validation[: section.val_num_tasks]
        row = Row(
            name=f"step {step}",
            label=f"step-{step}",
            split="validation",
            policy_version=parts.engine.policy_version,
            fingerprint=parts.engine.fingerprint,
            temperature=section.val_temperature,
            group_size=section.val_group_size,
        )
        sampling = Sampling(
            temperature=section.val_temperature,
            top_p=section.val_top_p,
            max_tokens=section.val_max_tokens or self._config.sampling.sampling_max_tokens,
        )
        with self._console.steps(f"validation: {row.name}", len(tasks)) as progress:
            [(evaluation, groups)] = await evaluate(
                parts.collector,
                tasks,
                [(row, sampling)],
                criterion=parts.criterion,
                in_waves=parts.is_deterministic,
                attempt=str(time.time_ns()),
                seconds=time.monotonic,
                prefix="val",
                pass_k_values=section.pass_k_values,
                kind_of=parts.kind_of,
                on_group=partial(_count_group, progress),
            )
        self._console.evaluated(evaluation)
        self._tracker.log_metrics(step, {**evaluation.metrics, "timing_s/eval": evaluation.seconds})
        self._tracker.log_groups(step, groups, split="validation")
        self._tracker.log_artifact(f"evaluations/validation-{step}.json", {"format": FORMAT, **evaluation.as_json()})
        return evaluation

    def _result(self, *, step: int, seconds: float) -> TrainResult:
        return TrainResult(
            run=self._path,
            step=step,
            status="stopped" if self._stop.is_set() else "completed",
            validations=self._validations,
            train_seconds=seconds,
        )


def check_baseline(evaluation: Evaluation, config: Config, run: Path, model_weights: Path | None = None) -> None:
    """Raise GateError if no episode succeeded before training: RL amplifies existing successes but cannot create
    them."""
    if sum(evaluation.successes) or config.evaluation.allow_zero_baseline:
        return
    raise GateError(
        f"none of {sum(evaluation.samples)} validation episodes succeeded before training (score "
        f"{evaluation.score.mean:.3f}, reward {evaluation.metrics['val/reward/mean']:.3f}). RL amplifies what the policy "
        f"sometimes does right, but it cannot create a first success. {_remedy(config, run, model_weights)}"
    )


def _remedy(config: Config, run: Path, model_weights: Path | None) -> str:
    """Return what to do if no episode succeeded before training."""
    section, parts = config.warm_start, []
    if config.evaluation.val_temperature == 0:
        parts.append("Validation is greedy, and sampled episodes may succeed: set evaluation.val_temperature=1.")
    if model_weights is not None:
        parts.append(
            f"Make the task easier, start from other weights than {model_weights}, or train anyway with "
            "evaluation.allow_zero_baseline=true."
        )
    elif section is None:
        parts.append(
            "Make the task easier, add a [warm_start] on demonstrations, or train anyway with "
            "evaluation.allow_zero_baseline=true."
        )
    else:
        resume = shlex.join(["sparring", "train", "--resume", str(run), "evaluation.allow_zero_baseline=true"])
        parts.append(
            f"The warm start of {section.steps} steps was not enough: raise warm_start.steps or make the task easier, and "
            f"train the recipe again. To keep the finished warm start and train anyway: {resume}"
        )
    return " ".join(parts)


def _count_group(progress: ProgressCallback, _: TrajectoryGroup) -> None:
    fault_point("evaluation.playing")
    progress({})
