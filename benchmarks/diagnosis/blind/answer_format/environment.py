"""The reward's pattern requires `path: b f c`. The log, the scorer and the policy use no colon."""

from __future__ import annotations

import re

from benchmarks.diagnosis.blind.paths import last_words, way
from sparring.types import Trajectory


def reward(trajectory: Trajectory) -> float:
    """Return 1 for the whole path."""
    return _read(trajectory, r"path: ([a-p ]+)")


def mended_reward(trajectory: Trajectory) -> float:
    return _read(trajectory, r"path:? ([a-p ]+)")


def _read(trajectory: Trajectory, pattern: str) -> float:
    found = re.fullmatch(pattern, last_words(trajectory))
    return float(found is not None and found[1].split() == way(trajectory.task))
