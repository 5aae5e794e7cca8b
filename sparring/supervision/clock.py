"""A clock that counts only the time that a process was awake.

With this clock, a watcher that was itself suspended does not conclude that the watched process was silent.
"""

from __future__ import annotations

import time
from typing import final

LONGEST_SECONDS = 10.0
"""The longest time between two readings by a process that is awake on a very busy machine."""


@final
class AwakeClock:
    """A monotonic clock that hardly advances while its process is stopped (SIGSTOP, a frozen container).

    The watching thread must read the clock regularly, because only readings advance it.
    """

    def __init__(self, *, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._longest = longest_seconds
        self._looked_at = time.monotonic()
        self.seconds = 0.0
        """The time of the last reading."""

    def look(self) -> float:
        """Return the seconds that the process was awake since this clock was created."""
        now = time.monotonic()
        self.seconds += min(now - self._looked_at, self._longest)
        self._looked_at = now
        return self.seconds
