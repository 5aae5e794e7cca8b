"""A reward function that sums the environment's own rewards, which the adapters log at every step. It does not require
any of the adapted libraries."""

from __future__ import annotations

from sparring.types import Trajectory


def episode_return(trajectory: Trajectory) -> float:
    """Return the undiscounted sum of the environment's rewards, or 0 if there are none."""
    return float(sum(transition.get("reward") or 0.0 for transition in trajectory.transitions))
