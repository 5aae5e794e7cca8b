"""What rules look at, read from a run's folder: of one that has ended, or of one under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from sparring.diagnosis.diagnose import Diagnosis, diagnosed
from sparring.diagnosis.observed import Lineage, Observed, Progress
from sparring.errors import DataError
from sparring.evaluation.of_run import claim_of_run
from sparring.findings import Finding
from sparring.history import History, read_history
from sparring.ledger.attempts import count_attempts
from sparring.tracking import RunFolder
from sparring.tracking.stored import rows

UNDER_WAY = ("running", "paused", "interrupted")


def diagnose(run: Path, *, clock: Callable[[], float] = time.time) -> Diagnosis:
    """The diagnosis of a stored run, or of one under way, from its files alone. Raises DataError for a folder that is no run,
    for a run that trains nothing, and for damaged files."""
    return replace(diagnosed(str(run), observe(run, clock=clock)), claim=claim_of_run(RunFolder(run)))


def observe(run: Path, *, clock: Callable[[], float] = time.time, with_parent: bool = True) -> Observed:
    """As `diagnose`. `with_parent` reads what it was branched from, too, where that still exists."""
    folder = RunFolder(run)
    config = folder.config()
    if not config.is_trainable:
        raise DataError(
            f"{run} is a baseline that {config.engine.type!r} plays, so there is no training to diagnose; name a run."
        )
    observed = Observed(
        config=config,
        history=read_history(run, success_threshold=config.evaluation.success_threshold),
        said=tuple(_said(run / "findings.jsonl")),
        attempts=count_attempts(run / "ledger.sqlite"),
        progress=_progress(folder, clock),
        template_problem=folder.manifest().get("template_problem"),
    )
    # Nothing is tried again here, so that detectors go by what trials have confirmed.
    observed.history.said += observed.said
    return replace(observed, lineage=_lineage(folder, clock)) if with_parent else observed


def _said(path: Path) -> Iterator[Finding]:
    """What was said of steps of training; what was said of the recipe before is not about this run."""
    for where, row in rows(path, is_growing=True) if path.is_file() else ():
        try:
            finding = Finding.from_json(row)
        except (LookupError, TypeError, ValueError) as error:
            raise DataError(f"{where}: {error!r}; this is no finding as `sparring` writes them.") from error
        if finding.step is not None:
            yield finding


def _progress(folder: RunFolder, clock: Callable[[], float]) -> Progress | None:
    status = folder.status()
    if status.get("status") not in UNDER_WAY:
        return None
    metrics = folder.path / "metrics.jsonl"
    last = max(float(status.get("time", 0.0)), metrics.stat().st_mtime if metrics.exists() else 0.0)
    return Progress(
        status=status["status"], seconds_since_last=max(0.0, clock() - last), reason=status.get("reason"),
    )  # fmt: skip


def _lineage(folder: RunFolder, clock: Callable[[], float]) -> Lineage | None:
    origin = folder.origin()
    if origin is None:
        return None
    parent = Path(origin["run"])
    if not RunFolder.is_run(parent):
        parent = folder.path.parent / parent.name  # both were moved together
    is_there = RunFolder.is_run(parent)
    observed = observe(parent, clock=clock, with_parent=False) if is_there else None
    return Lineage(
        parent=str(parent), step=origin["step"],
        changes={key: (old, new) for key, (old, new) in origin["changes"].items()}, files=tuple(origin["files"]),
        history=History() if observed is None else observed.history,
        findings=() if observed is None else diagnosed(str(parent), observed).findings,
    )  # fmt: skip
