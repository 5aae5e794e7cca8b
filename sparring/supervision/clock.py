"""Time that a process was awake for, so that who was stopped himself does not take it for somebody's silence."""

from __future__ import annotations

import time
from typing import final

LONGEST_SECONDS = 10.0
"""Between two looks of a process that is awake, on a very busy machine."""


@final
class AwakeClock:
    """Monotonic seconds, of which a process that was stopped (SIGSTOP, a frozen container) missed all but a few. Whoever
    watches looks at it regularly, which is what moves it."""

    def __init__(self, *, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._longest = longest_seconds
        self._looked_at = time.monotonic()
        self.seconds = 0.0
        """At the last look."""

    def look(self) -> float:
        """Seconds awake since this clock was made."""
        now = time.monotonic()
        self.seconds += min(now - self._looked_at, self._longest)
        self._looked_at = now
        return self.seconds
