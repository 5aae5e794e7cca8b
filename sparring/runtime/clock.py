"""The clock that components read, so that whole runs can be simulated with virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A source of time. By default it is the clock of this machine; tests replace it."""

    monotonic: Callable[[], float] = time.monotonic
    """Returns the seconds since an arbitrary start, for durations and deadlines."""
    now: Callable[[], float] = time.time
    """Returns the seconds since 1970, for records."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


SYSTEM_CLOCK = Clock()
