"""A thread for the slow part of tracking, so that neither the disk nor a server delays a step."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import final

from sparring.runtime.logs import get_logger

logger = get_logger(__name__)


@final
class TrackingThread:
    """Runs jobs one after the other on a daemon thread. The first job that raises an exception causes a warning. Later
    failures are silent.

    `capacity` jobs may wait. If the queue is full, `submit` waits or, with `drops_when_full`, discards the job.
    """

    def __init__(self, name: str, *, capacity: int, drops_when_full: bool = False) -> None:
        self._name = name
        self._drops_when_full = drops_when_full
        self._jobs: queue.Queue[Callable[[], object] | None] = queue.Queue(capacity)
        self._has_warned = False
        self._num_dropped = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"sparring-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], object]) -> None:
        if self._is_closed:
            raise RuntimeError(f"{self._name} is closed; it accepts no more jobs.")
        try:
            self._jobs.put(job, block=not self._drops_when_full)
        except queue.Full:
            self._num_dropped += 1

    def close(self, timeout: float | None = None) -> None:
        """Finish the waiting jobs. This takes at most `timeout` seconds; None means no limit. Closing again does
        nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._jobs.put(None, timeout=timeout)
        except queue.Full:
            self._warn(f"did not finish within {timeout} s; waiting entries are lost")
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._warn(f"did not finish within {timeout} s; waiting entries are lost")
        elif self._num_dropped:
            self._warn(f"was too slow, so {self._num_dropped} entries were discarded")

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - a failing job must not stop the run
                if not self._has_warned:
                    self._has_warned = True
                    self._warn(f"failed ({error!r}); the run continues, but this tracker misses some data")

    def _warn(self, what: str) -> None:
        logger.warning("tracking: %s %s", self._name, what)
