"""The reports of a supervised process to its supervisor: that it is alive, which run it trains, that it has ended.

One line of JSON each, over a socket whose other end the supervisor holds, so that the end of the supervisor is seen, too.
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
"""The environment variable with the number of the socket's file descriptor."""
BEAT_SECONDS: Final = 2.0
FAREWELL_SECONDS: Final = 8.0
"""The time that a process without its supervisor may take for its last checkpoint and for closing."""


@final
class Report:
    """The supervised side. Without a supervisor it reports nothing."""

    def __init__(self) -> None:
        """Take over the socket that the environment names."""
        number = os.environ.pop(VARIABLE, None)  # not for the processes that this one starts
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
        """Report the run: from now on a restarted process would resume it."""
        self._tell({"run": run})

    def over(self, exit_code: int) -> None:
        """The process ends by itself, in success or failure: nothing is to be started again. What it leaves behind is ended by
        the supervisor, or here if that is gone."""
        self._tell({"over": exit_code})
        if self._is_orphan:
            end_descendants()

    def _tell(self, message: dict[str, str | int]) -> None:
        if self._socket is not None:
            with self._lock, suppress(OSError):
                self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _beat(self) -> None:
        """For ever; ends with the process. A process that holds the interpreter lock for good falls silent."""
        never = threading.Event()
        while not never.wait(BEAT_SECONDS):
            self._tell({"beat": 0})

    def _watch(self) -> None:
        """Wait for the supervisor's end, then stop this process, with a checkpoint if there is time."""
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
    """This process's own."""
    return Report()
