"""MultiTurnRLTrainer: a recipe in, a trained policy and a run folder out."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Self, final

from sparring import background, loop
from sparring.build import (
    Parts,
    build,
    build_scheduler,
    checkpoint_in,
    close,
    compared,
    demonstrations,
    load_curriculum,
    observer,
    refuse_training,
    trials_of,
    with_checkpoints,
)
from sparring.build.learning import learning_of
from sparring.checks import gate
from sparring.checks.report import CheckReport
from sparring.computing import GivenUp, none_left
from sparring.config import Config, load_config, untrainable
from sparring.detectors import Watch
from sparring.errors import GateError, UsageError
from sparring.evaluation.claim import Claim
from sparring.evaluation.evaluation import Evaluation, Row, evaluate
from sparring.evaluation.of_run import claim_of_run
from sparring.evaluation.report import FORMAT
from sparring.faults import fault_point
from sparring.findings import Finding, Severity
from sparring.history import History
from sparring.interrupts import interrupts
from sparring.ledger import Ledger
from sparring.logs import kept_in
from sparring.metering import metered_in
from sparring.protocols import Tracker
from sparring.resuming import find_start
from sparring.rollouts.resumption import Kept
from sparring.saving import Saver, save_announced, training_state
from sparring.supervision.report import supervised
from sparring.supervision.watchdog import BLOCKED_SECONDS, Watchdog
from sparring.tracking import Console, FanOut, RunFolder, open_trackers
from sparring.tracking.recipe_files import folder_of
from sparring.tracking.run_folder import VOCABULARY, WARM_START
from sparring.tracking.stored import RESUMED
from sparring.training import checkpoints
from sparring.training.schedule import learning_rate
from sparring.types import Sampling, TrajectoryGroup, Weights
from sparring.warm_start import supervised_steps

PAUSE_SECONDS = 0.5
"""How often a paused run looks whether it may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a finished `train()` hands back."""

    run: Path
    step: int
    status: str
    validations: Mapping[int, Evaluation]
    train_seconds: float
    """Wall time of the RL steps, validation included."""

    @property
    def claim(self) -> Claim:
        """What the run's evaluations show so far: without a held-out one, its validations."""
        return claim_of_run(RunFolder(self.run))


@final
class MultiTurnRLTrainer:
    """Trains the policy of a recipe by multi-turn RL.

        trainer = MultiTurnRLTrainer("recipes/quickstart/recipe.toml", overrides=["schedule.max_steps=20"])
        result = trainer.train()
        MultiTurnRLEvaluator(model=trainer).evaluate()

    `model_weights` continues from the weights of another run (a run folder or checkpoint) with a fresh optimizer.
    """

    def __init__(
        self,
        recipe: str | Path,
        *,
        overrides: Sequence[str] = (),
        name: str | None = None,
        model_weights: str | Path | None = None,
        check: bool = True,
        quiet: bool = False,
    ) -> None:
        """`check` looks for what is wrong with the recipe first, and trains nothing when it finds an error.

        Raises ConfigError with every problem of the recipe at once.
        """
        path = Path(recipe)
        self.recipe = path / "recipe.toml" if path.is_dir() else path
        self.config: Config = load_config(self.recipe, list(overrides))
        if not self.config.is_trainable:
            raise untrainable(self.config, str(self.recipe))
        self.folder: RunFolder | None = None
        self._run: Path | None = None
        """Of the folder, as it was named: a person reads that."""
        self._name = name or self.config.run.name
        self.overrides = tuple(overrides)
        self._checks = check
        self._model_weights = model_weights
        self._console = Console(quiet=quiet)
        self._parts: Parts | None = None
        self._let_go: weakref.finalize[[], Self] | None = None
        self._future: Future[TrainResult] | None = None
        self._stop: asyncio.Event | None = None
        self._stop_requested = threading.Event()

    @classmethod
    def attach(cls, run: str | Path, *, overrides: Sequence[str] = (), quiet: bool = False) -> Self:
        """The trainer of an existing run, to resume, evaluate or read it. Raises DataError for a folder that is none, or whose
        manifest is missing or of a newer version."""
        folder = RunFolder(Path(run))
        folder.require_manifest()
        trainer = cls(folder.recipe, overrides=overrides, quiet=quiet)
        trainer._keep_in(folder)
        return trainer

    def train(
        self, *, wait: bool = True, dry_run: bool = False, resume: bool = False, allow_changed: Collection[str] = ()
    ) -> TrainResult | None:
        """Train to the end, or return at once with `wait=False` (see `wait`). `dry_run` only checks what can be
        checked without playing: recipe, environment, data, model. `resume` continues an attached run's last checkpoint.

        Raises UsageError when a resumed run's model, tokenizer, template, data or recipe is another than it was trained with
        last, unless `allow_changed` names it.
        """
        if self._future is not None and not self._future.done():
            raise UsageError("this trainer is training already; wait for it, or make another trainer.")
        refuse_training(self.config, folder_of(self.recipe))
        if dry_run:
            with Ledger() as ledger:
                build(self.config, folder_of(self.recipe), ledger)
            return None
        self._stop_requested.clear()
        self._future = background.submit(self._train(resume, allow_changed))
        return self.wait() if wait else None

    def wait(self, timeout: float | None = None) -> TrainResult:
        """Wait for `train`. The first Ctrl-C asks the run to stop with a checkpoint, the second cancels it.

        Raises TimeoutError after `timeout` seconds; the run goes on then.
        """
        if self._future is None:
            raise UsageError("nothing to wait for: call train() first.")
        with interrupts(self.stop):
            deadline = None if timeout is None else time.monotonic() + timeout
            while True:
                # Short waits, since a signal handler only runs between them.
                with suppress(TimeoutError):
                    return self._future.result(timeout=0.2)
                if self._future.done():
                    return self._future.result()
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"the run is still training after {timeout} s; it goes on.")

    def close(self) -> None:
        """Let go of the model, the ledger, the gateway and whatever else was opened: nothing can be played afterwards."""
        if self._let_go is not None and (closing := self._let_go()) is not None:
            self._parts = None
            closing.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Who interrupts a second time does not want to wait for what is being computed.
        if kind is None or not issubclass(kind, KeyboardInterrupt):
            self.close()

    def stop(self) -> None:
        """Stop with a checkpoint, after the step under way if that is nearly over. Calling it again changes nothing."""
        self._stop_requested.set()
        stop = self._stop
        if stop is not None:
            background.call_soon(stop.set)

    async def play_with(self, weights: Weights) -> None:
        """Have the engine play with some weights of this run's model, and policies frozen by the warm start with what that
        left; `parts` are built."""
        parts, folder = self._parts, self.folder
        assert parts is not None, "there is an engine"
        assert folder is not None, "what is built has a folder"
        await parts.engine.load_weights(weights, version=parts.engine.policy_version + 1)
        await self._freeze(parts, folder)

    @property
    def parts(self) -> Parts:
        """The built objects; builds them on first use. Raises what `build` raises."""
        if self._parts is None:
            self._parts = background.submit(self._build()).result()
        return self._parts

    def _keep_in(self, folder: RunFolder) -> None:
        self.folder, self._run = folder.absolute(), folder.path

    async def _build(self) -> Parts:
        if self.folder is None:
            self.config = await asyncio.to_thread(with_checkpoints, self.config)
            self._keep_in(RunFolder.create(self.config, self.recipe, name=self._name))
        assert self.folder is not None
        ledger = Ledger(self.folder.path / "ledger.sqlite")
        try:
            parts = await asyncio.to_thread(
                build, self.config, folder_of(self.recipe), ledger, announce=self._console.announced
            )
            if not (self.folder.path / VOCABULARY).exists():
                self.folder.keep_vocabulary(await asyncio.to_thread(parts.policy.vocabulary))
            # One that is dropped and not closed keeps no model and no cache for as long as the process lives.
            self._let_go = weakref.finalize(self, lambda: background.finish(close(parts)))
            self._let_go.atexit = False
            return parts
        except BaseException:
            ledger.close()
            raise

    async def _train(self, resume: bool, allow_changed: Collection[str]) -> TrainResult:
        self._stop = asyncio.Event()
        if self._stop_requested.is_set():
            self._stop.set()
        await none_left()
        with ExitStack() as held:
            start: Path | None = None
            is_attached = resume and self.folder is not None
            if is_attached and self.folder is not None:
                # Before anything is opened that might write.
                held.enter_context(self.folder.held_for_training())
                start = await asyncio.to_thread(find_start, self.folder, self.overrides)
            parts, folder = await self._prepared(checks=self._checks and not resume)
            if not is_attached:
                held.enter_context(folder.held_for_training())
            held.enter_context(kept_in(folder.path))
            held.enter_context(metered_in(folder.path, during="training"))
            # Files as the run's own recipe names them.
            settings = self.config if self.recipe.absolute() == folder.recipe else folder.config()
            for note in await asyncio.to_thread(
                compared, parts, folder, settings, resume=resume, given=self.overrides, allowed=allow_changed
            ):
                self._console.announced(note)
            tracker = open_trackers(self.config, folder, self._console)

            def stands(status: str, *, step: int | None = None, reason: str | None = None) -> None:
                folder.set_status(status, step=step, reason=reason)
                tracker.log_status(status, reason=reason)

            supervised().trains(str(folder.path))
            try:
                stands("running")
                with self._watchdog(parts, folder):
                    result = await self._train_parts(parts, folder, resume, start, tracker)
                stands(result.status, step=result.step)
            except BaseException as error:
                is_stopped = isinstance(error, asyncio.CancelledError)
                # A status that cannot be written must not hide why the run ended.
                with suppress(OSError):
                    stands("stopped" if is_stopped else "failed", reason=None if is_stopped else str(error))
                raise
            finally:
                await asyncio.to_thread(tracker.close)
        self._console.finished(result.run, result.status, result.step)
        return result

    async def _prepared(self, *, checks: bool) -> tuple[Parts, RunFolder]:
        """The built objects and the run's folder. Raises GateError for errors that the checks find."""
        if self.folder is None:
            RunFolder.require_new(Path(self.config.run.runs_dir), self._name)  # before a minute of checks
        reports = [await self._checked()] if checks else []
        if self._parts is None:
            with self._console.phase("loading the model"):
                self._parts = await self._build()
        assert self.folder is not None, "what is built has a folder"
        if reports:
            reports.append(await gate.check_loaded(self._parts, self.recipe, self.overrides))
            self.folder.record_checks([report.as_json() for report in reports])
            self._stop_on_errors(reports[-1])
        return self._parts, self.folder

    def _watchdog(self, parts: Parts, folder: RunFolder) -> Watchdog:
        # What an episode calls in this process has no more time than the episode.
        deadly = self.config.rollout.rollout_timeout + 2 * BLOCKED_SECONDS if supervised().is_heard else None
        return Watchdog(
            asyncio.get_running_loop(), parts.ledger, folder.path / "stalls.txt", say=self._console.announced,
            deadly_seconds=deadly, learned=lambda: parts.learner.num_microbatches,
        )  # fmt: skip

    async def _checked(self) -> CheckReport:
        """What can be seen without the model, before it is loaded. Raises GateError for errors."""
        with self._console.phase("checking the recipe"):
            report = await asyncio.to_thread(gate.check_unloaded, self.recipe, self.overrides, self._console.announced)
        self._stop_on_errors(report)
        return report

    def _stop_on_errors(self, report: CheckReport) -> None:
        for finding in report.findings:
            if finding.severity is not Severity.NOTE:
                self._console.found(finding)
        if report.errors:
            raise GateError(
                f"{len(report.errors)} of the findings on {report.recipe} are errors, so nothing was trained; `sparring check` "
                "shows their evidence. Mend what they name, or train all the same with --no-check (check=False)."
            )

    async def _train_parts(
        self, parts: Parts, folder: RunFolder, resume: bool, checkpoint: Path | None, trackers: Tracker
    ) -> TrainResult:
        """`checkpoint` is the one that a resumed run goes on from."""
        config, stop = self.config, self._stop
        assert stop is not None
        step, outstanding = 0, ()
        # The ledger only grows, also by rollouts that no checkpoint knows of: a run that was killed may be resumed again.
        label = f"r{len(parts.ledger.rollouts())}-" if resume else ""
        curriculum = load_curriculum(config, parts.tasks.train, label=label)
        kept = (
            None
            if parts.is_deterministic
            else Kept(parts.ledger, max_steps_off_policy=config.rollout.max_steps_off_policy)
        )
        saver = Saver(parts.learner, parts.ledger, folder, schedule=config.schedule, say=self._console.announced)
        if checkpoint is not None:
            state = checkpoints.load(checkpoint, parts.learner)
            step = int(state["step"])
            if step > 0:  # before the first step there is a warm start at most
                saver.newest = step
                curriculum.restore(state["curriculum"])
                outstanding = curriculum.played_again(state["outstanding"])
        if step < config.schedule.max_steps:
            (await asyncio.to_thread(saver.room, step)).check()
        if resume:
            await self._rewind(parts, step, checkpoint, kept)
            if checkpoint is None:
                # A trainer that goes on in its own process may hold weights that nobody kept.
                parts.learner.load_weights(parts.initial_weights)
        if checkpoint is not None:
            pass
        elif self._model_weights is not None:
            parts.learner.load_weights(checkpoints.load_weights(checkpoint_in(self._model_weights), parts.policy))
            # A run that is resumed does not know where its weights came from.
            await saver.save(0, training_state(0, curriculum))
        elif config.warm_start is not None and not await self._warm_start(parts, folder):
            return TrainResult(
                run=self._run or folder.path, step=0, status="stopped", validations={}, train_seconds=0.0
            )
        await parts.engine.load_weights(parts.learner.export_weights(), version=step)
        await self._freeze(parts, folder)

        validations: dict[int, Evaluation] = {}
        self._console.warned(config.warnings())
        trials = trials_of(config, parts.recipe_dir, loop=asyncio.get_running_loop())
        history = History(success_threshold=config.evaluation.success_threshold, trials=trials)
        watch = Watch(history, parts.detectors)
        if resume:
            await asyncio.to_thread(watch.resume, folder.path, step)
        tracker = FanOut([trackers, watch])
        if resume:
            tracker.log_metrics(step, {RESUMED: 1.0})
        shortage = await asyncio.to_thread(saver.shortage, step)
        if shortage is not None:
            tracker.log_finding(shortage.as_json())

        plans = chain(outstanding, curriculum)
        scheduler = build_scheduler(
            parts, plans if kept is None else kept.plans(plans), version=step, on_group=self._console.group_played
        )

        async def heed(at: int) -> None:
            """Tell what the detectors found after a step, and do what the recipe says about errors."""
            findings = await asyncio.to_thread(watch.findings)
            for finding in findings:
                tracker.log_finding(finding.as_json())
            errors = [one for one in findings if one.severity is Severity.ERROR]
            if errors:
                save_now = partial(saver.save, at, training_state(at, curriculum, scheduler.outstanding))
                await saver.settled()
                await self._react(parts, folder, errors[0], at, save_now, began=watch.first_said(errors[0].rule))

        began = time.monotonic()

        async def validate(at: int, *, is_last: bool = False) -> None:
            every = config.schedule.val_every
            is_due = is_last or at in (step, config.schedule.max_steps) or (every > 0 and at % every == 0)
            if not parts.tasks.validation or at in validations or not is_due or stop.is_set():
                return
            played = await loop.unless_stopped(self._validate(parts, at, tracker), stop)
            if played is None:
                return
            validations[at] = played
            saver.validated(at, played.score.mean)
            await heed(at)
            if at == 0 and config.schedule.max_steps > 0:
                self._check_baseline(validations[at])

        async def save(at: int) -> None:
            # The status is never ahead of the ledger: what is resumed is compared with both.
            await asyncio.to_thread(parts.ledger.flush)
            await heed(at)
            lost = scheduler.budget.finding(at), parts.collector.losses.finding(at)
            for found in (*lost, await asyncio.to_thread(saver.shortage, at)):
                if found is not None:
                    tracker.log_finding(found.as_json())
            every = config.schedule.save_every
            if saver.is_due or (every and at % every == 0):
                saving = time.monotonic()
                await saver.begin(at, training_state(at, curriculum, scheduler.outstanding))
                tracker.log_metrics(at, {"timing_s/save_checkpoint": time.monotonic() - saving})
            folder.set_status("running", step=at)
            if folder.stop_requested():
                stop.set()

        run = loop.Run(
            engine=parts.engine,
            learning=learning_of(parts),
            scheduler=scheduler,
            curriculum=curriculum,
            kind_of=parts.kind_of,
            tracker=tracker,
            observe=observer(parts),
            prices=config.tracking.prices,
            success_threshold=config.evaluation.success_threshold,
            start_step=step,
            max_steps=config.schedule.max_steps,
            max_seconds=config.schedule.max_seconds,
            validate=validate,
            save=save,
            doing=self._console.doing,
            stop=stop,
        )  # fmt: skip
        progress = self._console.training(
            config.schedule.max_steps, start=step, episodes=config.batch.global_batch_size * config.batch.group_size
        )
        try:
            async with saver:
                with progress:
                    last = await loop.train(run)
                if kept is not None:
                    kept.close()
                await saver.save(last, training_state(last, curriculum, scheduler.outstanding))
        except GivenUp:
            # The weights are of no step: the last checkpoint is what the run goes on from.
            last = saver.newest or 0
        fault_point("run.closing")
        train_seconds = time.monotonic() - began
        await validate(last, is_last=True)
        return TrainResult(
            run=self._run or folder.path,
            step=last,
            status="stopped" if stop.is_set() else "completed",
            validations=validations,
            train_seconds=train_seconds,
        )

    async def _react(
        self,
        parts: Parts,
        folder: RunFolder,
        finding: Finding,
        at: int,
        save: Callable[[], Awaitable[None]],
        *,
        began: int,
    ) -> None:
        """What detectors.reaction says. `began` is the step after which the finding's rule first spoke, as a warning maybe.
        Raises GateError unless the run goes on."""
        reaction = self.config.detectors.reaction
        if reaction == "report":
            return
        said = f"{finding.rule} after step {at}: {finding.symptom}"
        if reaction == "pause":
            await self._pause(folder, said, at)
            return
        if reaction == "stop":
            await save()
            raise GateError(
                f"{said} detectors.reaction = 'stop' ended the run with a checkpoint of that step. {finding.change} To go on all "
                "the same: `sparring train --resume` with detectors.reaction=report."
            )
        aside = checkpoints.set_aside(folder.checkpoints, folder.path / "set_aside", since=began)
        healthy = checkpoints.newest(folder.checkpoints) if checkpoints.any_in(folder.checkpoints) else None
        step, name = 0, ""
        if healthy is not None:
            step, name = int(checkpoints.load(healthy, parts.learner)["step"]), healthy.name
        await asyncio.wrap_future(parts.ledger.rewind_nowait(step, name, detail=said))
        left = f"the newest checkpoint is {healthy.name} again" if healthy else "there was no checkpoint from before"
        moved = f"; {', '.join(path.name for path in aside)} went to {aside[0].parent}" if aside else ""
        raise GateError(
            f"{said} detectors.reaction = 'roll_back' ended the run: {left}{moved}. {finding.change} Then go on from there with "
            "a new run that takes these weights."
        )

    async def _pause(self, folder: RunFolder, said: str, at: int) -> None:
        """Wait until the file `pause` is deleted, or the run is asked to stop."""
        assert self._stop is not None
        folder.pause.touch()
        folder.set_status("paused", step=at, reason=said)
        self._console.announced(f"paused: {said} Delete {folder.pause} to go on, or stop the run.")
        while folder.pause.exists() and not self._stop.is_set():
            if folder.stop_requested():
                self._stop.set()
            await asyncio.sleep(PAUSE_SECONDS)
        folder.pause.unlink(missing_ok=True)
        folder.set_status("running", step=at)

    async def _warm_start(self, parts: Parts, folder: RunFolder) -> bool:
        """Whether it came to its end. One that was stopped leaves no checkpoint: a resumed run begins it anew."""
        section = self.config.warm_start
        assert section is not None
        conversations = await asyncio.to_thread(
            demonstrations, parts, section.num_demonstrations, section.demonstrations
        )
        done = 0
        with self._console.steps("warm start", section.steps) as progress:
            async for step, metrics in supervised_steps(
                parts.learner, conversations, steps=section.steps, batch_size=section.batch_size,
                learning_rate=partial(
                    learning_rate, peak=section.learning_rate, schedule=section.learning_rate_schedule, warmup_steps=0,
                    max_steps=section.steps,
                ),
                seed=self.config.run.seed, stop=self._stop,
            ):  # fmt: skip
                progress(metrics)
                done = step
        if done < section.steps:
            return False
        parts.learner.reset_optimizer()
        state = await asyncio.to_thread(parts.learner.export_state)
        await asyncio.to_thread(save_announced, parts.ledger, folder.checkpoints, 0, WARM_START, state, {"step": 0})
        return True

    async def _freeze(self, parts: Parts, folder: RunFolder) -> None:
        """Give the policies that play with what the warm start left what it left."""
        if not parts.frozen_by_warm_start:
            return
        left = folder.checkpoints / WARM_START
        if not left.is_dir():
            raise UsageError(
                f"a policy of the recipe has weights = 'warm_start', but {left} does not exist: this run has had no warm start "
                "of its own. Name the folder of a run instead."
            )
        weights = checkpoints.load_weights(left, parts.policy)
        for engine in parts.frozen_by_warm_start:
            await engine.load_weights(weights, version=0)

    async def _validate(self, parts: Parts, step: int, tracker: Tracker) -> Evaluation:
        section = self.config.evaluation
        tasks = parts.tasks.validation[: section.val_num_tasks]
        row = Row(
            name=f"step {step}", label=f"step-{step}", split="validation", policy_version=parts.engine.policy_version,
            fingerprint=parts.engine.fingerprint, temperature=section.val_temperature, group_size=section.val_group_size,
        )  # fmt: skip
        with self._console.steps(f"validation: {row.name}", len(tasks)) as progress:

            def played(_: TrajectoryGroup) -> None:
                fault_point("evaluation.playing")
                progress({})

            evaluation, groups = await evaluate(
                parts.collector, tasks, row,
                sampling=Sampling(
                    temperature=section.val_temperature, max_tokens=self.config.sampling.sampling_max_tokens
                ),
                judge=parts.judge, in_waves=parts.is_deterministic, attempt=str(time.time_ns()), seconds=time.monotonic,
                prefix="val", pass_k_values=section.pass_k_values, kind_of=parts.kind_of, on_group=played,
            )  # fmt: skip
        self._console.evaluated(evaluation)
        tracker.log_metrics(step, {**evaluation.metrics, "timing_s/eval": evaluation.seconds})
        tracker.log_groups(step, groups, split="validation")
        tracker.log_artifact(f"evaluations/validation-{step}.json", {"format": FORMAT, **evaluation.as_json()})
        return evaluation

    def _check_baseline(self, evaluation: Evaluation) -> None:
        """Raises GateError when not one baseline episode succeeded: RL amplifies what happens, it does not create it."""
        if sum(evaluation.successes) or self.config.evaluation.allow_zero_baseline:
            return
        raise GateError(
            f"none of {sum(evaluation.samples)} validation episodes succeeded before training (score "
            f"{evaluation.score.mean:.3f}, reward {evaluation.metrics['val/reward/mean']:.3f}). RL amplifies what the policy "
            "sometimes does right; it cannot create it. Make the task easier, add a [warm_start] on demonstrations, or "
            "train all the same with evaluation.allow_zero_baseline=true."
        )

    async def _rewind(self, parts: Parts, step: int, checkpoint: Path | None, kept: Kept | None) -> None:
        """Bring the ledger to the checkpoint: what it holds is trained, and what came after it never happened."""
        name = ""
        if checkpoint is not None:
            name = checkpoints.original_name(checkpoint)
            # The process may have died between the two.
            published = parts.ledger.publish_nowait(step, name, checkpoints.digest(checkpoint))
            await asyncio.wrap_future(published)
        keep = set() if kept is None else await asyncio.to_thread(kept.find, step)
        await asyncio.wrap_future(parts.ledger.rewind_nowait(step, name, keep=keep))
