"""Tells what a run that does not get on is waiting for: every thread's and every task's place in the code."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TextIO, final

from sparring.ledger import Ledger, RolloutState
from sparring.supervision.clock import AwakeClock

BLOCKED_SECONDS = 60.0
"""From when on an event loop that does not turn is told of."""
QUIET_SECONDS = 600.0
"""From when on a run that records nothing and learns nothing is told of."""
MOST_NAMED = 5


@final
class Watchdog:
    """Watches an event loop and a ledger from a thread of its own, for as long as the block lasts.

    What it finds goes to `path`, and one line of it to `say`. An event loop that has not turned for `deadly_seconds` ends the
    process by SIGABRT, so that a supervisor can start it again; None leaves it waiting. `learned` counts what is done while
    nothing is recorded: a warm start of an hour gets on.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ledger: Ledger,
        path: Path,
        *,
        say: Callable[[str], object],
        deadly_seconds: float | None,
        learned: Callable[[], int] = lambda: 0,
        blocked_seconds: float = BLOCKED_SECONDS,
        quiet_seconds: float = QUIET_SECONDS,
        poll_seconds: float = 1.0,
    ) -> None:
        self._loop, self._ledger, self._path, self._say, self._learned = loop, ledger, path, say, learned
        self._deadly, self._blocked, self._quiet, self._poll = (
            deadly_seconds,
            blocked_seconds,
            quiet_seconds,
            poll_seconds,
        )
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
        """Until the block is left."""
        done, done_at = (-1, -1), self._clock.look()
        was_blocked = was_quiet = False
        while not self._over.wait(self._poll):
            self._loop.call_soon_threadsafe(self._turn)
            now = self._clock.look()
            blocked = now - self._turned_at
            if done != (now_done := (self._ledger.num_commits, self._learned())):
                done, done_at, was_quiet = now_done, now, False
            if blocked < self._blocked:
                was_blocked = False
            elif not was_blocked:
                was_blocked = True
                self._tell(f"the event loop has not turned for {blocked:.0f} s: code that it called does not come back")
            if now - done_at > self._quiet and not was_quiet:
                was_quiet = True
                self._tell(f"nothing was recorded or learned for {now - done_at:.0f} s; {self._waited_for()}")
            if self._deadly is not None and blocked > self._deadly:
                self._tell(f"the event loop has not turned for {blocked:.0f} s; the process is ended")
                os.kill(os.getpid(), signal.SIGABRT)

    def _waited_for(self) -> str:
        running = self._ledger.ids(RolloutState.RUNNING)
        if not running:
            return "no episode is in play, so the run is loading, learning one microbatch, or saving"
        more = f" and {len(running) - MOST_NAMED} more" if len(running) > MOST_NAMED else ""
        return f"in play: {', '.join(running[:MOST_NAMED])}{more}"

    def _tell(self, what: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
            self._write_tasks(file)
        self._say(f"{what}. Where every thread and task is stands in {self._path}")

    def _write_tasks(self, file: TextIO) -> None:
        for task in list(asyncio.all_tasks(self._loop)):
            task.print_stack(file=file)
