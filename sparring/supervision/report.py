"""The reports of a supervised process to its supervisor: that it is alive, which run it trains, and that it is about to
exit.

Each report is one line of JSON, sent over a socket. The supervisor holds the other end of the socket, so the process
also notices when the supervisor ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from contextlib import suppress
from functools import cache
from typing import Final, final

from sparring.runtime.interrupts import is_stopping
from sparring.runtime.keeper import adopt_orphans, end_descendants

VARIABLE: Final = "SPARRING_SUPERVISOR"
"""The environment variable that contains the number of the socket's file descriptor."""
BEAT_SECONDS: Final = 2.0
FAREWELL_SECONDS: Final = 8.0
"""The time that a process may take for its last checkpoint and for closing after it has lost its supervisor."""


@final
class Report:
    """The supervised side of the socket. Without a supervisor it reports nothing."""

    def __init__(self) -> None:
        """Take over the socket whose number is in the environment variable."""
        number = os.environ.pop(VARIABLE, None)  # Child processes must not inherit it.
        self._socket = None if number is None else socket.socket(fileno=int(number))
        self._lock = threading.Lock()
        self._is_orphan = False
        if self._socket is not None:
            adopt_orphans()
            os.set_inheritable(self._socket.fileno(), False)
            threading.Thread(target=self._watch, name="sparring-supervised", daemon=True).start()
            threading.Thread(target=self._beat, name="sparring-heartbeat", daemon=True).start()

    @property
    def is_heard(self) -> bool:
        """Return whether there is a supervisor."""
        return self._socket is not None

    def trains(self, run: str) -> None:
        """Report the current run. From now on, a restarted process resumes this run."""
        self._tell({"run": run})

    def over(self, exit_code: int) -> None:
        """Report that the process exits on its own, in success or failure, so that it is not restarted.

        The supervisor terminates the processes that this process leaves behind. Without a supervisor, this method
        terminates them.
        """
        self._tell({"over": exit_code})
        if self._is_orphan:
            end_descendants()

    def _tell(self, message: dict[str, str | int]) -> None:
        if self._socket is not None:
            with self._lock, suppress(OSError):
                self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _beat(self) -> None:
        """Report regularly until the process ends. A process that never releases the interpreter lock sends no
        reports."""
        never = threading.Event()
        while not never.wait(BEAT_SECONDS):
            self._tell({"beat": 0})

    def _watch(self) -> None:
        """Wait until the supervisor ends, then stop this process, with a checkpoint if there is enough time."""
        assert self._socket is not None
        with suppress(OSError):
            while self._socket.recv(64):
                pass
        self._is_orphan = True
        if not is_stopping():
            os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(FAREWELL_SECONDS)
        end_descendants()
        os.killpg(0, signal.SIGKILL)


@cache
def supervised() -> Report:
    """Return the report of this process."""
    return Report()
