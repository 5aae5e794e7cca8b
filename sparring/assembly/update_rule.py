"""Build the update rule of a recipe, which computes weight updates from rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from sparring.algorithms.credit import StepAdvantages
from sparring.assembly.run import TrainingParts
from sparring.loop import UpdateRule
from sparring.training.distillation import distill
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


def _advantages(parts: TrainingParts, groups: Sequence[TrajectoryGroup]) -> StepAdvantages:
    """Return the advantages, with the part of teachers, and the metrics of divergences. The divergence from the base
    model is subtracted from the rewards if the recipe requests this.
    """
    section = parts.config.algorithm
    metrics: Mapping[str, float] = {}
    if section.takes_reward_off:
        groups, metrics = subtract_penalty(groups, parts.learner, coef=section.kl_coef)
    turns = parts.algorithm.advantages(groups)
    if parts.teachers is None:
        return StepAdvantages(turns=turns, tokens=None, metrics=metrics)
    tokens, taught = distill(groups, parts.teachers)
    return StepAdvantages(turns=turns, tokens=tokens, metrics={**metrics, **taught})
