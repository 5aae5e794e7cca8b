"""The divergence from the base model as a part of the reward: k1, whose expectation has the right gradient there.

As a loss k1 would do nothing, since its gradient is zero in expectation (docs/algorithms.md, "Staying near the base").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from sparring.training.sequences import build_batch
from sparring.types import Reward, TrainingBatch, Trajectory, TrajectoryGroup


class Diverges(Protocol):
    def divergences(self, batch: TrainingBatch) -> tuple[Mapping[tuple[str, float], float], Mapping[str, float]]: ...


def penalized(
    groups: Sequence[TrajectoryGroup], learner: Diverges, *, coef: float
) -> tuple[list[TrajectoryGroup], Mapping[str, float]]:
    """The groups with coef * log(sampler / base) taken off the rewards: of each turn where rewards are per turn, else of
    the whole trajectory; and the metrics of that divergence."""
    numbers = {t.id: tuple(range(1, len(t.turns) + 1)) for group in groups for t in group.trajectories}
    sums, metrics = learner.divergences(build_batch(groups, numbers, drop_zero_advantage=False))
    changed = [
        replace(group, trajectories=tuple(_penalized(trajectory, sums, coef) for trajectory in group.trajectories))
        for group in groups
    ]
    return changed, metrics


def _penalized(trajectory: Trajectory, sums: Mapping[tuple[str, float], float], coef: float) -> Trajectory:
    reward = trajectory.reward
    assert reward is not None, "a trajectory without reward was admitted"
    penalties = {
        turn.id: coef * sums.get((trajectory.id, float(number)), 0.0)
        for number, turn in enumerate(trajectory.turns, start=1)
    }
    per_turn = None
    if reward.per_turn is not None:
        per_turn = {turn_id: reward.per_turn.get(turn_id, 0.0) - penalty for turn_id, penalty in penalties.items()}
    changed = Reward(
        total=reward.total - sum(penalties.values()), per_turn=per_turn,
        components=reward.components, metrics=reward.metrics,
    )  # fmt: skip
    return replace(trajectory, reward=changed)
