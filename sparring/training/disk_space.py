"""Check that the disk has space for future checkpoints before they are written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from sparring.errors import DiskError
from sparring.findings import Finding, Severity
from sparring.models.tensor_files import num_bytes
from sparring.types import Weights

FEWEST = 2
"""The number of checkpoints for which there should always be space, because episodes, ledger and logs also grow."""

_AROUND_BYTES = 2**16
"""The bytes of a checkpoint in addition to its tensors, for names, shapes, data order and hashes."""


def estimate_checkpoint_bytes(weights: Weights) -> int:
    """Return the size in bytes of a checkpoint of these weights: the weights, AdamW's two moments, and some overhead."""
    return 3 * num_bytes(weights) + _AROUND_BYTES


def count_remaining(*, keep: int, num_saves: int, num_there: int) -> int:
    """Return how many checkpoints the run will have at the same time in addition to the existing ones.

    A run keeps `keep` numbered checkpoints and the best one, and writes the next one before it deletes the oldest. The
    result is at most the number of future saves (`num_saves`).
    """
    return min(num_saves, max(1, keep + 2 - num_there))


@dataclass(frozen=True, slots=True)
class Room:
    """The free space of a file system and the space that checkpoints need, in bytes."""

    path: Path
    free_bytes: int
    checkpoint_bytes: int
    num_to_come: int

    def check(self) -> None:
        """Raise DiskError if not even the next checkpoint fits."""
        if self.free_bytes < self.checkpoint_bytes:
            raise DiskError(
                f"{self.path} has {_read(self.free_bytes)} free, but a checkpoint takes "
                f"{_read(self.checkpoint_bytes)}: it cannot be written. Free up space, or store the run "
                "elsewhere (run.runs_dir)."
            )

    @property
    def wanted_bytes(self) -> int:
        """The space for all future checkpoints, but at least for FEWEST checkpoints."""
        return self.checkpoint_bytes * max(FEWEST, self.num_to_come)

    def finding(self, step: int) -> Finding | None:
        """Return a finding if there is not enough space for the future checkpoints, otherwise None."""
        if self.free_bytes >= self.wanted_bytes:
            return None
        return Finding(
            rule="disk.space",
            severity=Severity.WARNING,
            symptom=f"{self.path} has {_read(self.free_bytes)} free; checkpoints of {_read(self.checkpoint_bytes)} each and "
            f"the other files of the run need {_read(self.wanted_bytes)}.",
            evidence={
                "free_bytes": self.free_bytes,
                "checkpoint_bytes": self.checkpoint_bytes,
                "num_to_come": self.num_to_come,
            },
            change="Free up disk space now: a checkpoint that does not fit is not written, and a ledger that does not fit ends "
            "the run.",
            confirm=f"{_read(self.wanted_bytes)} are free.",
            step=step,
        )


def measure_free_bytes(path: Path) -> int:
    """Return the bytes that this process may still write on the file system of `path`, or of its first existing parent."""
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free


def _read(num_bytes: int) -> str:
    """Return a size in readable form, such as 1.5 GB."""
    value = float(num_bytes)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
