"""Reduce the reward by the divergence from the base model. The estimator is k1, which has the correct gradient when it
is part of the reward.

As a loss, k1 would have no effect, because its gradient is zero in expectation (docs/algorithms.md, "Staying near the
base").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from sparring.protocols import Learner
from sparring.training.sequences import build_batch, trajectory_indices
from sparring.types import Reward, TrainingBatch, Trajectory, TrajectoryGroup


def subtract_penalty(
    groups: Sequence[TrajectoryGroup], learner: Learner, *, coef: float
) -> tuple[list[TrajectoryGroup], Mapping[str, float]]:
    """Return the groups with coef * log(sampler / base) subtracted from the rewards, and the metrics of this divergence.

    The divergence is subtracted per turn if rewards are per turn, and otherwise for the whole trajectory.
    """
    numbers = {t.id: tuple(range(1, len(t.turns) + 1)) for group in groups for t in group.trajectories}
    # The advantage field of a token contains the number of its turn.
    batch = build_batch(groups, numbers, drop_zero_advantage=False)
    sums, metrics = _divergences(batch, learner.reference_logprobs(batch))
    changed = [
        replace(group, trajectories=tuple(_penalized(trajectory, sums, coef) for trajectory in group.trajectories))
        for group in groups
    ]
    return changed, metrics


def _divergences(
    batch: TrainingBatch, reference: Sequence[float]
) -> tuple[dict[tuple[str, float], float], dict[str, float]]:
    """Return the sums of log(sampler / base) over the trained tokens, keyed by trajectory id and advantage.

    Also return k1, k2 and k3 of KL(sampler || base) over all trained tokens (joschu.net/blog/kl-approx.html).
    """
    names = list(dict.fromkeys(sequence.trajectory_id for sequence in batch.sequences))
    tokens = (
        (sampled, advantage)
        for segment in batch.segments
        for sampled, advantage, masked in zip(segment.sampled_logprobs, segment.advantages, segment.mask, strict=True)
        if masked
    )
    sums: dict[tuple[str, float], float] = {}
    differences: list[float] = []
    for (sampled, advantage), index, base in zip(tokens, trajectory_indices(batch), reference, strict=True):
        key = (names[index], advantage)
        sums[key] = sums.get(key, 0.0) + sampled - base
        differences.append(sampled - base)
    if not differences:
        return sums, {}
    return sums, {
        "training/reference_kl_k1": fmean(differences),
        "training/reference_kl_k2": fmean(one * one for one in differences) / 2,
        "training/reference_kl_k3": fmean(math.expm1(-one) + one for one in differences),
    }


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
        total=reward.total - sum(penalties.values()),
        per_turn=per_turn,
        components=reward.components,
        metrics=reward.metrics,
    )
    return replace(trajectory, reward=changed)
