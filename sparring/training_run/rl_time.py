"""The time that the RL of a run takes, which decides how long its control is trained."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from statistics import fmean
from typing import Final, final

from sparring.errors import UsageError
from sparring.run_folders import RunFolder
from sparring.run_folders.run_folder import WARM_START
from sparring.run_folders.stored import read_metrics, training_seconds
from sparring.training_run.following import RESTART_SECONDS

POLL_SECONDS: Final = 0.2
REFRESH_SECONDS: Final = 1.0
"""How often the files of a run are read again."""


@final
class RLTime:
    """The wall time of RL's steps, without validation, of a run that was trained, or that another process trains.

    The expected time of a running RL assumes that later steps take as long as earlier ones.
    """

    def __init__(self, folder: RunFolder, *, max_steps: int, is_running: bool) -> None:
        """Raises DataError if the metrics of a trained run are missing or damaged."""
        self._folder, self._max_steps, self._is_final = folder, max_steps, not is_running
        self._seconds = math.inf if is_running else training_seconds(self._metrics)
        self._read = self._alive = -math.inf
        """When the files were read, and when the process was last seen."""

    @property
    def seconds(self) -> float:
        """The time that RL takes in all: measured, expected, or infinite before its first step. Raises UsageError if RL
        fails."""
        self._refresh()
        return self._seconds

    @property
    def is_final(self) -> bool:
        """Whether RL has ended, so that `seconds` does not change any more. Raises UsageError if RL fails."""
        self._refresh()
        return self._is_final

    def wait_for_start(self) -> None:
        """Wait until the run has loaded its model and recorded its parts. Raises UsageError if it fails before."""
        while not self.is_final and self._folder.status().get("status") == "created":
            time.sleep(POLL_SECONDS)

    async def wait_for_warm_start(self) -> None:
        """Wait until the run has saved its warm start. Raises UsageError if it ends before."""
        while not (self._folder.checkpoints / WARM_START).is_dir():
            if self.is_final:
                raise UsageError(
                    f"{self._folder.path} ended before its warm start, so it has no control; resume it first."
                )
            await asyncio.sleep(POLL_SECONDS)

    async def wait_for_end(self) -> None:
        """Wait until RL has ended. Raises UsageError if it fails."""
        while not self.is_final:  # noqa: ASYNC110 (another process sets it)
            await asyncio.sleep(POLL_SECONDS)

    @property
    def _metrics(self) -> Path:
        return self._folder.path / "metrics.jsonl"

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._is_final or now - self._read < REFRESH_SECONDS:
            return
        self._read = now
        status = self._folder.status().get("status")  # read before the metrics, which are complete if the run has ended
        has_ended = status in ("completed", "stopped")
        if not has_ended:
            self._refuse_idle(status, now)
        if has_ended:
            self._seconds, self._is_final = training_seconds(self._metrics), True
        elif self._metrics.is_file():
            times = [one["timing_s/step"] for one in read_metrics(self._metrics)[0].values() if "timing_s/step" in one]
            if times:
                self._seconds = fmean(times) * self._max_steps

    def _refuse_idle(self, status: object, now: float) -> None:
        """Raise UsageError if no process trains the run. A run whose process has died may be resumed within a minute."""
        if self._folder.has_process():
            self._alive = now
        if status == "failed" or now - self._alive > RESTART_SECONDS:
            raise UsageError(
                f"{self._folder.path} is {status}, and no process trains it, so its RL does not end. Resume it first, or create "
                "its control after the training."
            )
