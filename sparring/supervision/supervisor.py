"""The parent process of `sparring train` or another command. It starts the command, watches it, may restart it after a
crash, and leaves no processes behind.

This module must not import torch.
"""

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
from sparring.run_folders import RunFolder
from sparring.runtime.keeper import adopt_orphans, end_descendants
from sparring.runtime.private_files import open_private
from sparring.supervision.clock import AwakeClock
from sparring.supervision.report import VARIABLE
from sparring.tracking import Console, open_trackers

MAX_RESTARTS = 3
"""Maximum number of restarts without a finished step between them."""
SILENT_SECONDS = 300.0
"""A process that has not reported for this time counts as hung."""
IMPATIENT_SECONDS = 2.0
"""The time that a process may take to end after the second Ctrl-C."""
POLL_SECONDS = 0.1
CRASHED = 1
"""Exit code if a training was given up. The exit code of a killed process has no meaning for a shell."""
RESTARTS = "restarts.jsonl"


@final
class Supervisor:
    """Runs one command to its end. Training may need several processes.

    A process that exits on its own first reports its exit code, which becomes the exit code of the supervisor. Such a
    process is not restarted, because another attempt would not fix a mistake in a recipe. A process that ends in any
    other way, by a signal or by code that leaves the interpreter, has crashed.
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
        """Create a supervisor.

        `begin` is the first command. `resume` returns the command that continues the run in a folder; without `resume`,
        nothing is restarted. In messages, `what` stands for the command. The supervisor waits `pause_seconds` before
        the first restart, and twice as long before each further restart.
        """
        self._begin, self._resume, self._what = tuple(begin), resume, what
        self._say = say
        self._max_restarts, self._silent_seconds = max_restarts, silent_seconds
        self._pause_seconds = pause_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._run: RunFolder | None = None
        self._stop_requests: list[float] = []
        """The times at which a stop was requested."""
        self._stop_signal = signal.SIGINT
        """The first signal that requested a stop."""

    def run(self) -> int:
        """Run the command and return the exit code for this process."""
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
                if self._stop_requests:
                    return 128 + self._stop_signal
                if self._resume is None:
                    self._say(f"error: {self._what} {crash}. See its earlier output above.")
                    return CRASHED
                if self._run is None:
                    self._say(f"error: {self._what} {crash} before it had a run folder, so there is nothing to resume.")
                    return CRASHED
                step = int(self._run.status().get("step") or 0)
                is_further = step > last_step or self._run is not last_run
                num_restarts = 1 if is_further else num_restarts + 1
                last_run, last_step = self._run, step
                if num_restarts > self._max_restarts:
                    reason = f"{self._what} {crash} {num_restarts} times in a row after step {step}"
                    self._run.set_status("failed", reason=reason)
                    self._say(
                        f"error: {reason}, so it is not restarted. See its earlier output above. Fix the cause, "
                        f"then resume {self._run.path}."
                    )
                    break
                self._note(crash, step)
                self._say(
                    f"{self._what} {crash} after step {step}; it continues from its last checkpoint "
                    f"({num_restarts} of at most {self._max_restarts} restarts without a finished step)"
                )
                if self._waits(self._pause_seconds * 2 ** (num_restarts - 1)):
                    return 128 + self._stop_signal
                command = tuple(self._resume(str(self._run.path)))
        # Ctrl-C ends this wait.
        self._track_failure(self._run, reason)
        return CRASHED

    def _track_failure(self, run: RunFolder, reason: str) -> None:
        """Report the status to the trackers, because the process that would do so has ended."""
        try:
            tracker = open_trackers(run.config(), run, Console())
        except (OSError, SparringError) as error:
            self._say(f"warning: the failure of the run could not be reported to the trackers: {error}")
            return
        tracker.log_status("failed", reason=reason)
        tracker.close()

    def _watched(self, command: Sequence[str]) -> tuple[int | None, str]:
        """Start a process and wait for its end. Return the exit code that the process reported, or None and a
        description of how the process died."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                # The child has its own session, so Ctrl-C in the terminal only reaches this process, which passes it
                # on.
                self._process = subprocess.Popen(
                    command,
                    env={**os.environ, VARIABLE: str(theirs.fileno())},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            reported: dict[str, Any] = {}
            clock, heard_at, unread, is_hung = AwakeClock(), 0.0, b"", False
            while True:
                # The order matters: the last report of a process is in the socket before the process has ended.
                has_ended = self._process.poll() is not None
                received = self._heard(ours, wait=not has_ended)
                now = clock.look()
                if received:
                    heard_at = now
                    *lines, unread = (unread + received).split(b"\n")
                    for line in lines:
                        reported |= json.loads(line)
                    # A process may execute several runs, one after another. A resumed run is named again.
                    if "run" in reported and (self._run is None or self._run.path != Path(reported["run"])):
                        self._run = RunFolder(Path(reported["run"]))
                elif has_ended:
                    break
                if now - heard_at > self._silent_seconds and not is_hung:
                    is_hung = True
                    self._say(f"{self._what} has not reported for {self._silent_seconds:g} s; it is now terminated")
                    self._end_hung()
                if len(self._stop_requests) > 1 and time.monotonic() - self._stop_requests[1] > IMPATIENT_SECONDS:
                    self._kill(signal.SIGKILL)
        if "over" in reported:
            return int(reported["over"]), ""
        code = self._process.returncode
        if is_hung:
            return None, "hung"
        return None, f"died of {signal.Signals(-code).name}" if code < 0 else f"left the interpreter (exit code {code})"

    def _heard(self, ours: socket.socket, *, wait: bool) -> bytes:
        """Return what the process reported. The result is empty if no report arrives within a short wait, or if the
        process has closed its end of the socket."""
        if not select.select([ours], [], [], POLL_SECONDS if wait else 0)[0]:
            return b""
        received = ours.recv(65536)
        if not received and wait:
            time.sleep(POLL_SECONDS)
        return received

    def _end_hung(self) -> None:
        """End a hung process. SIGABRT comes first, because it makes the interpreter print the position of every
        thread."""
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
        with suppress(OSError), open_private(self._run.path / RESTARTS, "a") as file:
            file.write(line + "\n")

    def _waits(self, seconds: float) -> bool:
        """Wait, and return whether a stop was requested during the wait."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stop_requests:
            time.sleep(min(POLL_SECONDS, seconds))
        return bool(self._stop_requests)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass on signals that request a stop. Closing the terminal also sends such a signal, except under `nohup`."""

        def pass_on(number: int, _: FrameType | None) -> None:
            if not self._stop_requests:
                self._stop_signal = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
            self._stop_requests.append(time.monotonic())
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
