"""A random reward as a control, which shows what training changes without a reward signal."""

from __future__ import annotations

import random

from sparring.types import Trajectory


def random_reward(trajectory: Trajectory) -> float:
    """Return 0 or 1 at random, depending only on the episode's id. A policy that improves with this reward did not
    learn from rewards."""
    return float(random.Random(trajectory.id).random() < 0.5)
