"""Time as components read it, so that whole runs can be simulated under a virtual clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The time of this machine, unless a test gives another."""

    monotonic: Callable[[], float] = time.monotonic
    """Seconds from an arbitrary start, for durations and deadlines."""
    now: Callable[[], float] = time.time
    """Seconds since 1970, for records."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


SYSTEM_CLOCK = Clock()
