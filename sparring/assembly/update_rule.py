"""Build the update rule of a recipe, which computes weight updates from rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from sparring.algorithms.credit import TurnAdvantages
from sparring.assembly.run import TrainingParts
from sparring.loop import UpdateRule
from sparring.training.divergence import subtract_penalty
from sparring.training.schedule import learning_rate
from sparring.types import TrajectoryGroup


def build_update_rule(parts: TrainingParts) -> UpdateRule:
    """Build the update rule from the parts and their recipe."""
    config = parts.config
    return UpdateRule(
        learner=parts.learner,
        advantages=partial(_advantages, parts),
        loss_fn=config.algorithm.loss_fn,
        loss_config=config.loss_config(),
        loss_reduction=parts.algorithm.reduction,
        needs_every_token=config.algorithm.needs_every_token,
        num_passes=config.algorithm.num_passes,
        learning_rate=partial(
            learning_rate,
            peak=config.optimizer.learning_rate,
            schedule=config.optimizer.learning_rate_schedule,
            warmup_steps=config.optimizer.warmup_steps,
            max_steps=config.schedule.max_steps,
        ),
    )


def _advantages(parts: TrainingParts, groups: Sequence[TrajectoryGroup]) -> tuple[TurnAdvantages, Mapping[str, float]]:
    """Return the advantages and the metrics of the divergence from the base model. The divergence is subtracted from
    the rewards if the recipe requests this.
    """
    metrics: Mapping[str, float] = {}
    if parts.config.algorithm.takes_reward_off:
        groups, metrics = subtract_penalty(groups, parts.learner, coef=parts.config.algorithm.kl_coef)
    return parts.algorithm.advantages(groups), metrics
