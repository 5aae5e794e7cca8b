"""Whether the disk has room for the checkpoints that are still to come, before they are written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from sparring.errors import DiskError
from sparring.findings import Finding, Severity
from sparring.types import Weights

FEWEST = 2
"""Checkpoints for which there should be room at any time: episodes, ledger and logs grow too."""

_AROUND_BYTES = 2**16
"""Names and shapes of tensors, data order, hashes."""


def checkpoint_bytes(weights: Weights) -> int:
    """What a checkpoint of these weights takes: they and AdamW's two moments of each, and a little around them."""
    return 3 * sum(tensor.numel() * tensor.element_size() for tensor in weights.tensors.values()) + _AROUND_BYTES


def num_to_come(*, keep: int, num_saves: int, num_there: int) -> int:
    """How many more checkpoints there will be at once than there are now: `keep` numbered ones, the best one, and the next,
    which is written before the oldest goes; not more than are written (`num_saves`)."""
    return min(num_saves, max(1, keep + 2 - num_there))


@dataclass(frozen=True, slots=True)
class Room:
    """What a file system has and what is asked of it, in bytes."""

    path: Path
    free_bytes: int
    checkpoint_bytes: int
    num_to_come: int

    def check(self) -> None:
        """Raises DiskError when not even the next checkpoint has room."""
        if self.free_bytes < self.checkpoint_bytes:
            raise DiskError(
                f"{self.path} has {_read(self.free_bytes)} free, and a checkpoint takes "
                f"{_read(self.checkpoint_bytes)}: it cannot be written. Make room, or keep the run elsewhere (run.runs_dir)."
            )

    @property
    def wanted_bytes(self) -> int:
        return self.checkpoint_bytes * max(FEWEST, self.num_to_come)

    def finding(self, step: int) -> Finding | None:
        """None where there is room for what is to come."""
        if self.free_bytes >= self.wanted_bytes:
            return None
        return Finding(
            rule="disk.space",
            severity=Severity.WARNING,
            symptom=f"{self.path} has {_read(self.free_bytes)} free; checkpoints of {_read(self.checkpoint_bytes)} each and "
            f"what else the run writes want {_read(self.wanted_bytes)}.",
            evidence={
                "free_bytes": self.free_bytes, "checkpoint_bytes": self.checkpoint_bytes, "num_to_come": self.num_to_come,
            },
            change="Make room there now: a checkpoint that does not fit is not written, and a ledger that does not ends the run.",
            confirm=f"{_read(self.wanted_bytes)} are free.",
            step=step,
        )  # fmt: skip


def free_bytes(path: Path) -> int:
    """What this process may still write where `path`, or the first folder above it that exists, lies."""
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free


def _read(num_bytes: int) -> str:
    """For people: 1.5 GB."""
    value = float(num_bytes)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
