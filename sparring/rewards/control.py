"""A reward for a control: what training does by itself, whatever is rewarded."""

from __future__ import annotations

import random

from sparring.types import Trajectory


def random_reward(trajectory: Trajectory) -> float:
    """0 or 1 at random, by the episode's id alone: a policy that improves by it did not learn that from rewards."""
    return float(random.Random(trajectory.id).random() < 0.5)
