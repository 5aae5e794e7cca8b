"""Run one call of `train`: the checks before it, and the locks, files, trackers and status around the `TrainingRun`."""

from __future__ import annotations

import asyncio
import gc
import importlib
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sparring.assembly import TrainingParts, find_checkpoint, record_parts
from sparring.checks.running import gate
from sparring.checks.running.check_report import CheckReport
from sparring.config import Config
from sparring.copies.copier import Copier, open_copier
from sparring.copies.store import Store
from sparring.errors import DataError, GateError
from sparring.evaluation.evaluation import refuse_shared_ids
from sparring.findings import Severity
from sparring.metering.usage import meter_usage
from sparring.protocols import Tracker
from sparring.run_folders import RunFolder
from sparring.runtime.cancellable import wait_for_abandoned
from sparring.runtime.garbage import spare_loaded_objects
from sparring.runtime.logs import log_to_folder
from sparring.supervision.report import supervised
from sparring.supervision.watchdog import BLOCKED_SECONDS, Patience, Watchdog
from sparring.tracking import Console, open_trackers
from sparring.training.checkpoint_files import hash_checkpoint
from sparring.training_run.loading import LoadedRun, RunLoader
from sparring.training_run.resuming import find_start
from sparring.training_run.run import Start, TrainingRun, TrainResult

Loader: TypeAlias = RunLoader[TrainingParts]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """The options that the user chose for one call of `train`."""

    overrides: tuple[str, ...]
    is_checked: bool
    model_weights: str | Path | None
    resume: bool
    allow_changed: Collection[str]


async def run_training(loader: Loader, request: TrainRequest, console: Console, stop: asyncio.Event) -> TrainResult:
    """Execute a run to its end, or until `stop` is set.

    Raises GateError if the checks find errors or a detector stops the run, UsageError or DataError if a run cannot be
    resumed, and the errors of training. The run's status records how the run ended.
    """
    await wait_for_abandoned()
    with ExitStack() as held:
        checkpoint: Path | None = None
        resumed = loader.folder if request.resume else None
        if resumed is not None:
            # This must come before anything is opened that may write.
            held.enter_context(resumed.lock_for_training())
            checkpoint = await asyncio.to_thread(find_start, resumed, request.overrides)
        weights = None if checkpoint is not None else await asyncio.to_thread(_find_weights, resumed, request)
        if resumed is None:
            loader.model_weights = weights
        loaded = await _load(loader, request, console)
        if resumed is None:
            held.enter_context(loaded.folder.lock_for_training())
        held.enter_context(log_to_folder(loaded.folder.path))
        held.enter_context(meter_usage(loaded.folder.path, during="training"))
        await _compare_with_manifest(loaded, request, console)
        start = Start(is_resumed=request.resume, checkpoint=checkpoint, model_weights=weights)
        result = await _train(loaded, start, console, stop)
    console.finished(result.run, result.status, result.step)
    return result


def _find_weights(resumed: RunFolder | None, request: TrainRequest) -> Path | None:
    """Return the checkpoint whose weights the run starts from, or None. A run that is resumed before its first
    checkpoint starts from the same weights again. Raises DataError if they are not there or have changed."""
    if resumed is None:
        return None if request.model_weights is None else find_checkpoint(request.model_weights).resolve()
    origin = resumed.origin() or {}
    if "weights" not in origin:
        return None
    checkpoint = find_checkpoint(origin["weights"]).resolve()
    if hash_checkpoint(checkpoint) != origin["sha256"]:
        raise DataError(
            f"{checkpoint} has changed since {resumed.path} started from its weights. Bring the earlier weights back, or start "
            "a new run with --model-weights."
        )
    return checkpoint


async def _load(loader: Loader, request: TrainRequest, console: Console) -> LoadedRun[TrainingParts]:
    """Check the recipe, load the run, and check the model. Raises GateError if the checks find errors."""
    if loader.folder is None:
        RunFolder.require_new(Path(loader.config.run.runs_dir), loader.name)  # before the checks, which take a minute
    copy_to = loader.config.run.copy_to
    if copy_to is not None and not request.resume:
        await asyncio.to_thread(Store(copy_to).probe)
    if not request.is_checked or request.resume:
        return await _load_model(loader, console)
    with console.phase("checking the recipe"):
        unloaded, _ = await asyncio.gather(
            asyncio.to_thread(gate.check_unloaded, loader.recipe, request.overrides, console.announced),
            asyncio.to_thread(_import_libraries, loader.config),
        )
    _stop_on_errors(unloaded, console)
    loaded = await _load_model(loader, console)
    with meter_usage(loaded.folder.path, during="check"):
        report = await gate.check_loaded(loaded.parts, loader.recipe, request.overrides)
    loaded.folder.record_checks([unloaded.as_json(), report.as_json()])
    _stop_on_errors(report, console)
    return loaded


def _import_libraries(config: Config) -> None:
    """Import the libraries of the model, which takes seconds. Meanwhile, the checks run in a separate process."""
    if config.learner.type == "here":
        with suppress(ImportError):  # loading the model reports it
            importlib.import_module("sparring.models.pretrained")


async def _load_model(loader: Loader, console: Console) -> LoadedRun[TrainingParts]:
    if loader.is_loaded:
        loaded = await loader.load()
    else:
        with console.phase("loading the model"):
            loaded = await loader.load()
    num_validated = loader.config.evaluation.val_num_tasks
    refuse_shared_ids(loaded.parts.tasks.validation[:num_validated], "validation")
    return loaded


def _stop_on_errors(report: CheckReport, console: Console) -> None:
    for finding in report.findings:
        if finding.severity is not Severity.NOTE:
            console.found(finding)
    if report.errors:
        raise GateError(
            f"The checks of {report.recipe} reported errors ({len(report.errors)}), so nothing was trained. `sparring check` "
            "shows their evidence. Fix the errors, accept them by name (checks.accept), or train without any check: "
            "--no-check (check=False)."
        )


async def _compare_with_manifest(loaded: LoadedRun[TrainingParts], request: TrainRequest, console: Console) -> None:
    """Record the model, data and recipe that the run uses.

    Raises UsageError if the model, data or recipe of a resumed run has changed.
    """
    parts, folder = loaded.parts, loaded.folder
    # Use the paths that the run's own recipe contains.
    settings = parts.config if loaded.recipe.absolute() == folder.recipe else folder.config()
    for note in await asyncio.to_thread(
        record_parts,
        parts,
        folder,
        settings,
        resume=request.resume,
        given=request.overrides,
        allowed=request.allow_changed,
    ):
        console.announced(note)


async def _train(loaded: LoadedRun[TrainingParts], start: Start, console: Console, stop: asyncio.Event) -> TrainResult:
    """Train with open trackers and a watchdog, and record how training ends."""
    folder = loaded.folder
    tracker = open_trackers(loaded.parts.config, folder, console)
    copier: Copier | None = None
    supervised().trains(str(folder.path))
    try:
        copier = await _open_copier(loaded, start, console)
        _record_status(folder, tracker, "running")
        gc.collect()
        with _watchdog(loaded, console), spare_loaded_objects():
            run = TrainingRun(loaded, start, tracker=tracker, console=console, copier=copier, stop=stop)
            result = await run.train()
        _record_status(folder, tracker, result.status, step=result.step)
        return result
    except BaseException as error:
        is_stopped = isinstance(error, asyncio.CancelledError)
        # A status that cannot be written must not hide the reason why the run ended.
        with suppress(OSError):
            reason = None if is_stopped else str(error)
            if RunFolder.is_run(folder.path):  # otherwise its file system may be gone
                folder.set_status("stopped" if is_stopped else "failed", reason=reason)
            tracker.log_status("stopped" if is_stopped else "failed", reason=reason)
        raise
    finally:
        await asyncio.to_thread(tracker.close)
        if copier is not None:
            await asyncio.to_thread(copier.close)


async def _open_copier(loaded: LoadedRun[TrainingParts], start: Start, console: Console) -> Copier | None:
    """Start to copy the run if the recipe names a store. Raises the errors of `open_copier`."""
    copy_to = loaded.parts.config.run.copy_to
    if copy_to is None:
        return None
    return await asyncio.to_thread(
        open_copier, loaded.folder, copy_to, is_resumed=start.is_resumed, say=console.announced
    )


def _record_status(
    folder: RunFolder, tracker: Tracker, status: str, *, step: int | None = None, reason: str | None = None
) -> None:
    folder.set_status(status, step=step, reason=reason)
    tracker.log_status(status, reason=reason)


def _watchdog(loaded: LoadedRun[TrainingParts], console: Console) -> Watchdog:
    parts = loaded.parts
    # A call in this process must not block for longer than an episode may take.
    deadly = parts.config.rollout.rollout_timeout + 2 * BLOCKED_SECONDS if supervised().is_heard else None
    return Watchdog(
        asyncio.get_running_loop(),
        parts.ledger,
        loaded.folder.path / "stalls.txt",
        say=console.announced,
        patience=Patience(deadly_seconds=deadly),
        learned=lambda: parts.learner.num_microbatches,
    )
