"""A clock of the time that a process was awake, so that a watcher that was stopped does not mistake it for another's silence."""

from __future__ import annotations

import time
from typing import final

LONGEST_SECONDS = 10.0
"""The longest time between two readings by a process that is awake, on a very busy machine."""


@final
class AwakeClock:
    """Monotonic seconds, of which a process that was stopped (SIGSTOP, a frozen container) missed all but a few. The
    watching thread must read it regularly, which moves it."""

    def __init__(self, *, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._longest = longest_seconds
        self._looked_at = time.monotonic()
        self.seconds = 0.0
        """The time at the last reading."""

    def look(self) -> float:
        """Return the seconds awake since this clock was created."""
        now = time.monotonic()
        self.seconds += min(now - self._looked_at, self._longest)
        self._looked_at = now
        return self.seconds
