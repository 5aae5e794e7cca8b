"""Reads the observations of a run from its folder, even while the run trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from sparring.diagnosis.diagnose import Diagnosis, diagnose
from sparring.diagnosis.observed import Lineage, Observed, Progress
from sparring.errors import DataError
from sparring.evaluation.of_run import claim_of_run
from sparring.findings import Finding
from sparring.ledger.attempts import count_attempts
from sparring.run_folders import RunFolder, list_runs
from sparring.run_folders.digests import read_history
from sparring.run_folders.history import History
from sparring.run_folders.lineage import find_parent, read_ids
from sparring.run_folders.stored import read_rows

UNFINISHED = ("running", "paused", "interrupted")


def diagnose_run(run: Path, *, clock: Callable[[], float] = time.time) -> Diagnosis:
    """Return the diagnosis of a run from its files, even while the run trains.

    Raises DataError if the folder is not a run, if the run is not a training run, or if files are damaged.
    """
    return replace(diagnose(str(run), observe(run, clock=clock)), claim=claim_of_run(RunFolder(run)))


def observe(run: Path, *, clock: Callable[[], float] = time.time, with_parent: bool = True) -> Observed:
    """Read a run. With `with_parent`, also read the run from which it was branched, if that run exists.

    Raises DataError in the same cases as `diagnose_run`.
    """
    folder = RunFolder(run)
    config = folder.config()
    if not config.is_trainable:
        raise DataError(
            f"{run} is a baseline of engine.type = {config.engine.type!r}, so there is no training to diagnose; name "
            "a different run."
        )
    observed = Observed(
        config=config,
        history=read_history(run, success_threshold=config.evaluation.success_threshold),
        detected=tuple(_findings(run / "findings.jsonl")),
        attempts=count_attempts(run / "ledger.sqlite"),
        progress=_progress(folder, clock),
        template_problem=folder.manifest().get("template_problem"),
    )
    # Detectors run no trials here: they use what the trials during training confirmed.
    observed.history.findings += observed.detected
    return replace(observed, lineage=_lineage(folder, clock)) if with_parent else observed


def _findings(path: Path) -> Iterator[Finding]:
    """Yield the findings about training steps, without those of the check before training."""
    for where, row in read_rows(path, is_growing=True) if path.is_file() else ():
        try:
            finding = Finding.from_json(row)
        except (LookupError, TypeError, ValueError) as error:
            raise DataError(f"{where}: {error!r}; this is not a finding that `sparring` wrote.") from error
        if finding.step is not None:
            yield finding


def _progress(folder: RunFolder, clock: Callable[[], float]) -> Progress | None:
    status = folder.status()
    if status.get("status") not in UNFINISHED:
        return None
    metrics = folder.path / "metrics.jsonl"
    last = max(float(status.get("time", 0.0)), metrics.stat().st_mtime if metrics.exists() else 0.0)
    return Progress(
        status=status["status"],
        seconds_since_last=max(0.0, clock() - last),
        reason=status.get("reason"),
    )


def _lineage(folder: RunFolder, clock: Callable[[], float]) -> Lineage | None:
    origin = folder.origin()
    if origin is None or "weights" in origin:  # new training from other weights, whose steps are not comparable
        return None
    recorded = Path(origin["run"])
    near = [RunFolder(recorded)] if RunFolder.is_run(recorded) else []
    # The parent may have been renamed, or moved together with this run.
    parent = find_parent(origin, read_ids([*near, *list_runs(folder.path.parent)]))
    observed = None if parent is None else observe(parent, clock=clock, with_parent=False)
    return Lineage(
        parent=str(parent or recorded),
        step=origin["step"],
        changes={key: (old, new) for key, (old, new) in origin["changes"].items()},
        files=tuple(origin["files"]),
        history=History() if observed is None else observed.history,
        findings=() if observed is None else diagnose(str(parent), observed).findings,
    )
