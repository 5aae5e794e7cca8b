"""Follow the training of a run in another process of this machine, by the files of the run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sparring.errors import DataError, UsageError
from sparring.evaluation.of_run import evaluated
from sparring.run_folders import RunFolder
from sparring.run_folders.stored import training_seconds
from sparring.runtime.logs import LOG
from sparring.tracking import Console
from sparring.training_run.run import TrainResult

POLL_SECONDS: Final = 0.5
RESTART_SECONDS: Final = 60.0
"""The time in which a supervisor resumes a run whose process has died."""
ENDED: Final = ("completed", "stopped", "failed")


def follow(run: RunFolder, console: Console, timeout: float | None) -> TrainResult:
    """Wait until a run that another process trains has ended, show its steps, and return its result.

    A run whose process has died is given a minute to be resumed by its supervisor; then it is `interrupted`. Raises
    UsageError if no process trains the run, and TimeoutError after `timeout` seconds; the run then continues.
    """
    start, alive = time.monotonic(), time.monotonic()
    _refuse_idle(run)
    metrics = _Tail(run.path / "metrics.jsonl", at_end=True)
    while True:
        status = run.status()
        for row in metrics.rows():
            console.metrics(row["step"], row["metrics"])
        now = time.monotonic()
        if status.get("status") in ENDED or now - alive > RESTART_SECONDS:
            return read_result(run)
        if run.has_process():
            alive = now
        if timeout is not None and now - start > timeout:
            raise TimeoutError(f"the run has not finished after {timeout} s; it continues.")
        time.sleep(POLL_SECONDS)


def request_stop(run: RunFolder) -> None:
    """Request that the process that trains a run saves a checkpoint and stops. Raises UsageError if there is none."""
    if run.status().get("status") not in ("running", "paused"):
        raise UsageError(f"{run.path} is {run.status().get('status')}, not running, so there is nothing to stop.")
    run.request_stop()


def read_log(run: RunFolder, num_lines: int) -> list[str]:
    """Return the last warnings and errors of a run, each as one line."""
    path = run.path / LOG
    rows = list(_Tail(path).rows()) if path.is_file() else []
    return [f"{row.get('level', '')}: {row.get('message', '')}" for row in rows[max(0, len(rows) - num_lines) :]]


class _Tail:
    """The complete lines of a growing file of JSON, as they come."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self._path = path
        self._offset = path.read_bytes().rfind(b"\n") + 1 if at_end and path.exists() else 0

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield the lines since the last call. Raises DataError for a damaged line."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise DataError(f"{self._path} has a damaged line: {error!r}. Remove the line.") from error
                if isinstance(row, dict):
                    yield row


def _refuse_idle(run: RunFolder) -> None:
    status = run.status()
    if status.get("status") in ENDED or status.get("status") == "interrupted":
        return
    if not run.has_process() or status.get("process", {}).get("pid") == os.getpid():
        raise UsageError(
            f"{run.path} is {status.get('status')}, and no other process trains it, so there is nothing to wait for; call "
            "train(resume=True) first."
        )


def read_result(run: RunFolder) -> TrainResult:
    """Return the result of a run as its files record it."""
    status = run.status()
    numbers = run.path / "metrics.jsonl"
    return TrainResult(
        run=run.path,
        step=status.get("step", 0),
        status=str(status.get("status")),
        validations=evaluated(run).validations,
        train_seconds=training_seconds(numbers) if numbers.is_file() else 0.0,
    )
