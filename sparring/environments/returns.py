"""The environment's own rewards, which adapters log with every step, as a reward function; needs no adapted library."""

from __future__ import annotations

from sparring.types import Trajectory


def episode_return(trajectory: Trajectory) -> float:
    """The undiscounted sum of the rewards that the environment gave; 0 when it gave none."""
    return float(sum(transition.get("reward") or 0.0 for transition in trajectory.transitions))
