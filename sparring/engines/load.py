"""The load of an engine, measured while it runs."""

from __future__ import annotations

import threading
import time
from typing import final

import torch


@final
class Load:
    """Counts the work of an engine since the last `take`. The engine's thread updates the counts, and another thread
    reads them."""

    def __init__(self, now: float | None = None) -> None:
        self._lock = threading.Lock()
        """Protects all counts."""
        self._forget(time.monotonic() if now is None else now)

    def worked(self, seconds: float) -> None:
        """Add the duration of one step, in seconds."""
        with self._lock:
            self._seconds += seconds

    def decoded(self, num_rows: int) -> None:
        """Count a decoding pass with this number of rows."""
        with self._lock:
            self._num_batches += 1
            self._num_rows += num_rows

    def preempted(self) -> None:
        """Count a running turn that lost its place in the cache."""
        with self._lock:
            self._num_preempted += 1

    def take(self, now: float, *, capacity: int) -> dict[str, float]:
        """Return the metrics of an engine that can run `capacity` concurrent turns, and reset the counts at time
        `now`."""
        with self._lock:
            return self._take(now, capacity)

    def _take(self, now: float, capacity: int) -> dict[str, float]:
        metrics = {
            "engine/busy_share": min(1.0, self._seconds / max(1e-9, now - self._since)),
            "engine/occupancy": self._num_rows / (self._num_batches * capacity) if self._num_batches else 0.0,
            "engine/preempted_turns": float(self._num_preempted),
        }
        self._forget(now)
        return metrics

    def _forget(self, now: float) -> None:
        self._since, self._seconds = now, 0.0
        self._num_batches = self._num_rows = self._num_preempted = 0


def device_metrics(device: torch.device) -> dict[str, float]:
    """Return the accelerator's peak memory since the last call, in bytes, or no metrics if there is no accelerator."""
    if device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {"system/memory_device_bytes": float(peak)}
