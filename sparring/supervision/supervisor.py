"""The parent of a training, or of another command: starts it, watches it, may start it again after a crash, and leaves nothing
behind. No torch here."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, final

from sparring.errors import SparringError
from sparring.keeper import adopt_orphans, end_descendants
from sparring.supervision.clock import AwakeClock
from sparring.supervision.report import VARIABLE
from sparring.tracking import Console, RunFolder, open_trackers

MAX_RESTARTS = 3
"""In a row, without a step between them."""
SILENT_SECONDS = 300.0
"""From when on a process that does not say that it lives counts as hung."""
IMPATIENT_SECONDS = 2.0
"""How long after the second Ctrl-C a process may live."""
POLL_SECONDS = 0.1
CRASHED = 1
"""Exit code when a training was given up. That of a process which was killed says nothing to a shell."""
RESTARTS = "restarts.jsonl"


@final
class Supervisor:
    """Runs one command to its end, a training through as many processes as that takes.

    A process that ends by itself says so first, with its exit code, which is then this one's: a mistake in a recipe is not mended
    by trying again. One that ends in any other way, by a signal or by code that leaves the interpreter, has crashed.
    """

    def __init__(
        self,
        begin: Sequence[str],
        resume: Callable[[str], Sequence[str]] | None,
        *,
        what: str = "the training",
        say: Callable[[str], object],
        max_restarts: int = MAX_RESTARTS,
        silent_seconds: float = SILENT_SECONDS,
        pause_seconds: float = 1.0,
    ) -> None:
        """`begin` is the command to start with, `resume` gives the one that goes on with a run folder; without it nothing is
        started again. `what` names the command in messages. `pause_seconds` before the first restart, twice as long before each
        next one."""
        self._begin, self._resume, self._what = tuple(begin), resume, what
        self._say = say
        self._max_restarts, self._silent_seconds = max_restarts, silent_seconds
        self._pause_seconds = pause_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._run: RunFolder | None = None
        self._told_at: list[float] = []
        """When this process was asked to stop."""
        self._told_by = signal.SIGINT
        """The first signal that asked it."""

    def run(self) -> int:
        """Returns the exit code for this process."""
        adopt_orphans()
        num_restarts, last_run, last_step = 0, self._run, -1
        command = self._begin
        with self._signals():
            while True:
                try:
                    exit_code, crash = self._watched(command)
                finally:
                    end_descendants()
                if exit_code is not None:
                    return exit_code
                if self._told_at:
                    return 128 + self._told_by
                if self._resume is None:
                    self._say(f"error: {self._what} {crash}. What it says before that is above.")
                    return CRASHED
                if self._run is None:
                    self._say(f"error: {self._what} {crash} before it had a run folder; nothing is to be resumed.")
                    return CRASHED
                step = int(self._run.status().get("step") or 0)
                is_further = step > last_step or self._run is not last_run
                num_restarts = 1 if is_further else num_restarts + 1
                last_run, last_step = self._run, step
                if num_restarts > self._max_restarts:
                    reason = f"{self._what} {crash} {num_restarts} times in a row after step {step}"
                    self._run.set_status("failed", reason=reason)
                    self._say(
                        f"error: {reason}, so it is given up. What a process says before it dies is above; {self._run.path} "
                        "can be resumed when that is mended."
                    )
                    break
                self._note(crash, step)
                self._say(
                    f"{self._what} {crash} after step {step}; it goes on from its last checkpoint "
                    f"({num_restarts} of at most {self._max_restarts} times without a step between)"
                )
                if self._waits(self._pause_seconds * 2 ** (num_restarts - 1)):
                    return 128 + self._told_by
                command = tuple(self._resume(str(self._run.path)))
        # Ctrl-C ends this.
        self._track_failure(self._run, reason)
        return CRASHED

    def _track_failure(self, run: RunFolder, reason: str) -> None:
        """Pass the status on to the trackers, since the process that did so is gone."""
        try:
            tracker = open_trackers(run.config(), run, Console())
        except (OSError, SparringError) as error:
            self._say(f"warning: trackers do not learn that the run has failed: {error}")
            return
        tracker.log_status("failed", reason=reason)
        tracker.close()

    def _watched(self, command: Sequence[str]) -> tuple[int | None, str]:
        """Start a process and wait for its end: the exit code that it told, or None and how it died."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                # A session of its own: Ctrl-C in the terminal reaches this process alone, which passes it on.
                self._process = subprocess.Popen(
                    command, env={**os.environ, VARIABLE: str(theirs.fileno())}, pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )  # fmt: skip
            told: dict[str, Any] = {}
            clock, heard_at, unread, is_hung = AwakeClock(), 0.0, b"", False
            while True:
                # In this order: what a process says last is in the socket before it has ended.
                has_ended = self._process.poll() is not None
                received = self._heard(ours, wait=not has_ended)
                now = clock.look()
                if received:
                    heard_at = now
                    *lines, unread = (unread + received).split(b"\n")
                    for line in lines:
                        told |= json.loads(line)
                    # A process may train several runs, one after another; one that is resumed is named again.
                    if "run" in told and (self._run is None or self._run.path != Path(told["run"])):
                        self._run = RunFolder(Path(told["run"]))
                elif has_ended:
                    break
                if now - heard_at > self._silent_seconds and not is_hung:
                    is_hung = True
                    self._say(f"{self._what} has not said for {self._silent_seconds:g} s that it lives; it is ended")
                    self._end_hung()
                if len(self._told_at) > 1 and time.monotonic() - self._told_at[1] > IMPATIENT_SECONDS:
                    self._kill(signal.SIGKILL)
        if "over" in told:
            return int(told["over"]), ""
        code = self._process.returncode
        if is_hung:
            return None, "hung"
        return None, f"died of {signal.Signals(-code).name}" if code < 0 else f"left the interpreter (exit code {code})"

    def _heard(self, ours: socket.socket, *, wait: bool) -> bytes:
        """What the process said; nothing after a short while, or when it has closed its end."""
        if not select.select([ours], [], [], POLL_SECONDS if wait else 0)[0]:
            return b""
        received = ours.recv(65536)
        if not received and wait:
            time.sleep(POLL_SECONDS)
        return received

    def _end_hung(self) -> None:
        """SIGABRT first: it has the interpreter write down where every thread is."""
        assert self._process is not None
        self._kill(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._kill(signal.SIGKILL)

    def _kill(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _note(self, crash: str, step: int) -> None:
        assert self._run is not None
        line = json.dumps({"time": time.time(), "crash": crash, "step": step})
        with suppress(OSError), (self._run.path / RESTARTS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _waits(self, seconds: float) -> bool:
        """Whether somebody asked to stop meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._told_at:
            time.sleep(min(POLL_SECONDS, seconds))
        return bool(self._told_at)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass on what asks to stop; a terminal that was closed does, too, but for `nohup`."""

        def pass_on(number: int, _: FrameType | None) -> None:
            if not self._told_at:
                self._told_by = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
            self._told_at.append(time.monotonic())
            self._kill(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, pass_on) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
