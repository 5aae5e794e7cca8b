"""The time that the RL of a run takes, which decides how long its control is trained."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Final, Self, final

from sparring.errors import UsageError
from sparring.run_folders import RunFolder
from sparring.run_folders.run_folder import WARM_START
from sparring.run_folders.stored import read_metrics, training_seconds
from sparring.training_run.following import RESTART_SECONDS

ENDED: Final = ("completed", "stopped")
POLL_SECONDS: Final = 0.2
REFRESH_SECONDS: Final = 1.0
"""How often the files of a run are read again, at most."""
READING_SHARE: Final = 0.05
"""The largest share of the time in which the files of a run are read."""


@final
class RLTime:
    """The wall time of RL's steps, without validation, of a run that was trained, or that another process trains.

    The expected time of a running RL assumes that later steps take as long as earlier ones. RL has ended when the run has the
    status of its end and no process has its lock. From then on, this object holds the lock until its `with` block ends, so that
    the time does not change any more.
    """

    def __init__(self, folder: RunFolder, *, is_running: bool) -> None:
        """Without `is_running`, the run was trained before, in whatever way it ended."""
        self._folder, self._is_running = folder, is_running
        self._seconds, self._is_final = math.inf, False
        self._lock = ExitStack()
        self._alive = time.monotonic()
        """When a process that trains the run was last seen."""
        self._next = -math.inf
        """When the files are read again."""

    def __enter__(self) -> Self:
        """Raises UsageError if a run that was trained is in use, and DataError if its metrics are missing or damaged."""
        if not self._is_running:
            self._lock.enter_context(self._folder.lock_for_training())
            self._end()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.close()

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
                    f"{self._folder.path} ended before its warm start was saved, so it has no control. Resume it, or create the "
                    "control of the run whose weights it started from."
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
        if self._is_final or (start := time.monotonic()) < self._next:
            return
        status = self._folder.status().get("status")
        if status in ENDED and self._take_lock():
            self._end()
            return
        self._refuse_idle(status)
        if self._metrics.is_file():
            times = [one["timing_s/step"] for one in read_metrics(self._metrics)[0].values() if "timing_s/step" in one]
            if times:
                # A resumed run may have more steps than its recipe.
                max_steps = int(self._folder.manifest()["config"]["schedule"]["max_steps"])
                self._seconds = fmean(times) * max(max_steps, len(times))
        now = time.monotonic()
        self._next = now + max(REFRESH_SECONDS, (now - start) / READING_SHARE)

    def _end(self) -> None:
        """Read the final time. A run that ended in its warm start has no metrics."""
        has_steps = not self._is_running or (self._folder.checkpoints / WARM_START).is_dir()
        self._seconds, self._is_final = training_seconds(self._metrics) if has_steps else 0.0, True

    def _take_lock(self) -> bool:
        """Lock the run, unless its training still has the lock."""
        try:
            self._lock.enter_context(self._folder.lock_for_training())
        except UsageError:
            return False
        return True

    def _refuse_idle(self, status: object) -> None:
        """Raise UsageError if no process trains the run. A run whose process has died may be resumed within a minute."""
        now = time.monotonic()
        # A resumed run that still loads its model has the status of its end, but also the lock.
        if status in ENDED or self._folder.has_process():
            self._alive = now
        if now - self._alive > RESTART_SECONDS:
            raise UsageError(
                f"{self._folder.path} is {status}, and no process trains it, so its RL does not end. Resume it first, or create "
                "its control after the training."
            )
