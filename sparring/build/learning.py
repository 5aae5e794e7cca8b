"""How a recipe's weights follow from what was played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from sparring.algorithms.credit import TurnAdvantages
from sparring.build.run import Parts
from sparring.loop import Learning
from sparring.training.divergence import penalized
from sparring.training.schedule import learning_rate
from sparring.types import TrajectoryGroup


def learning_of(parts: Parts) -> Learning:
    """What of the built parts and their recipe learning depends on."""
    config = parts.config
    return Learning(
        learner=parts.learner,
        advantages=partial(_advantages, parts),
        loss_fn=config.algorithm.loss_fn,
        loss_config=config.loss_config(),
        loss_reduction=parts.algorithm.reduction,
        needs_every_token=config.algorithm.needs_every_token,
        num_passes=config.algorithm.num_passes,
        learning_rate=partial(
            learning_rate, peak=config.optimizer.learning_rate, schedule=config.optimizer.learning_rate_schedule,
            warmup_steps=config.optimizer.warmup_steps, max_steps=config.schedule.max_steps,
        ),
    )  # fmt: skip


def _advantages(parts: Parts, groups: Sequence[TrajectoryGroup]) -> tuple[TurnAdvantages, Mapping[str, float]]:
    """Advantages, of rewards less the divergence from the base model where that is asked for, and its metrics."""
    metrics: Mapping[str, float] = {}
    if parts.config.algorithm.takes_reward_off:
        groups, metrics = penalized(groups, parts.learner, coef=parts.config.algorithm.kl_coef)
    return parts.algorithm.advantages(groups), metrics
