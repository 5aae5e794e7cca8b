"""A watchdog that reports where a stalled run is waiting: the position of every thread and task in the code."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from sparring.ledger import Ledger, RolloutState
from sparring.runtime.private_files import open_private
from sparring.supervision.clock import AwakeClock

BLOCKED_SECONDS = 60.0
"""An event loop that has not run for this long is reported."""
QUIET_SECONDS = 600.0
"""A run that recorded and learned nothing for this long is reported."""
MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the watchdog waits before each of its actions, in seconds."""

    deadly_seconds: float | None
    """If an event loop has not run for this time, the process is ended by SIGABRT, so that a supervisor can restart it.
    None disables this."""
    blocked_seconds: float = BLOCKED_SECONDS
    """An event loop that has not run for this long is reported."""
    quiet_seconds: float = QUIET_SECONDS
    """A run that recorded and learned nothing for this long is reported."""
    poll_seconds: float = 1.0


@final
class Watchdog:
    """Watches an event loop and a ledger from its own thread for the duration of the `with` block.

    Reports are written to `path`, and `say` receives a one-line summary. `learned` counts progress that the ledger does
    not record, such as the steps of a warm start.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ledger: Ledger,
        path: Path,
        *,
        say: Callable[[str], object],
        patience: Patience,
        learned: Callable[[], int] = lambda: 0,
    ) -> None:
        self._loop, self._ledger, self._path, self._say, self._learned = loop, ledger, path, say, learned
        self._patience = patience
        self._clock = AwakeClock()
        self._turned_at = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sparring-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()

    def _turn(self) -> None:
        self._turned_at = self._clock.seconds

    def _watch(self) -> None:
        """Watch until the block ends."""
        patience = self._patience
        done, done_at = (-1, -1), self._clock.look()
        was_blocked = was_quiet = False
        while not self._over.wait(patience.poll_seconds):
            self._loop.call_soon_threadsafe(self._turn)
            now = self._clock.look()
            blocked = now - self._turned_at
            if done != (now_done := (self._ledger.num_commits, self._learned())):
                done, done_at, was_quiet = now_done, now, False
            if blocked < patience.blocked_seconds:
                was_blocked = False
            elif not was_blocked:
                was_blocked = True
                self._tell(f"the event loop has been blocked for {blocked:.0f} s by code that does not return")
            if now - done_at > patience.quiet_seconds and not was_quiet:
                was_quiet = True
                self._tell(f"nothing was recorded or learned for {now - done_at:.0f} s; {self._waited_for()}")
            if patience.deadly_seconds is not None and blocked > patience.deadly_seconds:
                self._tell(f"the event loop has been blocked for {blocked:.0f} s; the process is now terminated")
                os.kill(os.getpid(), signal.SIGABRT)

    def _waited_for(self) -> str:
        running = self._ledger.ids(RolloutState.RUNNING)
        if not running:
            return "no episode is running, so the run is loading, learning one microbatch, or saving"
        more = f" and {len(running) - MOST_NAMED} more" if len(running) > MOST_NAMED else ""
        return f"running episodes: {', '.join(running[:MOST_NAMED])}{more}"

    def _tell(self, what: str) -> None:
        with open_private(self._path, "a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
            self._write_tasks(file)
        self._say(f"{what}. The position of every thread and task is in {self._path}")

    def _write_tasks(self, file: Any) -> None:
        for task in list(asyncio.all_tasks(self._loop)):
            task.print_stack(file=file)
