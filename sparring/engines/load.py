"""How busy an engine is, counted while it works."""

from __future__ import annotations

import threading
import time
from typing import final

import torch


@final
class Load:
    """Counts since somebody last asked. The engine's thread adds, another asks."""

    def __init__(self, now: float | None = None) -> None:
        self._lock = threading.Lock()
        """Of all counts."""
        self._forget(time.monotonic() if now is None else now)

    def worked(self, seconds: float) -> None:
        with self._lock:
            self._seconds += seconds

    def decoded(self, num_turns: int) -> None:
        """One token of so many turns was computed at once."""
        with self._lock:
            self._num_batches += 1
            self._num_turns += num_turns

    def preempted(self) -> None:
        """A running turn gave its place in the cache up."""
        with self._lock:
            self._num_preempted += 1

    def take(self, now: float, *, capacity: int) -> dict[str, float]:
        """By metric name, for an engine that can run `capacity` turns at once; from `now` on it counts from 0."""
        with self._lock:
            return self._take(now, capacity)

    def _take(self, now: float, capacity: int) -> dict[str, float]:
        metrics = {
            "engine/busy_share": min(1.0, self._seconds / max(1e-9, now - self._since)),
            "engine/occupancy": self._num_turns / (self._num_batches * capacity) if self._num_batches else 0.0,
            "engine/preempted_turns": float(self._num_preempted),
        }
        self._forget(now)
        return metrics

    def _forget(self, now: float) -> None:
        self._since, self._seconds = now, 0.0
        self._num_batches = self._num_turns = self._num_preempted = 0


def device_metrics(device: torch.device) -> dict[str, float]:
    """The most bytes of an accelerator's memory that were in use since somebody last asked; nothing without one."""
    if device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {"system/memory_device_bytes": float(peak)}
