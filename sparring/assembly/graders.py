"""Load the graders of a recipe: reward, scorer and detectors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sparring.assembly.environment import load_environment
from sparring.config import Config
from sparring.detectors import DETECTORS, Detector
from sparring.detectors.exploits import user_scanner
from sparring.detectors.trials import Trials
from sparring.errors import ConfigError, ConfigProblem
from sparring.evaluation.evaluation import SuccessCriterion
from sparring.evaluation.independence import independence, objects_reached
from sparring.protocols import RewardFunction, Scorer
from sparring.rewards.judge import Judge as ModelJudge
from sparring.runtime.plugins import load_function, load_object


def load_graders(config: Config, recipe_dir: Path) -> tuple[RewardFunction | None, Scorer | None]:
    """Return the reward and the scorer. Each is None if the recipe does not specify it.

    Raises UsageError for objects that cannot be called with a trajectory.
    """
    reward, scorer = (
        _load_grader(f"reward.{key}", getattr(config.reward, key), recipe_dir) for key in ("reward", "scorer")
    )
    return reward, scorer


def _load_grader(key: str, name: str | None, recipe_dir: Path) -> Any:
    return None if name is None else load_function(name, "trajectory", key=key, folder=recipe_dir)


def build_criterion(config: Config, reward: RewardFunction | None, scorer: Scorer | None) -> SuccessCriterion:
    """Return the criterion that determines whether an episode of the recipe is a success."""
    return SuccessCriterion(
        scorer=config.reward.scorer,
        independence=independence(reward, scorer),
        success_threshold=config.evaluation.success_threshold,
    )


def load_detectors(config: Config, recipe_dir: Path) -> tuple[Detector, ...]:
    """Return the detectors that are not turned off, and the recipe's scanners. Raises ConfigError for an unknown detector."""
    unknown = [name for name in config.detectors.off if name not in DETECTORS]
    if unknown:
        message = f"names {', '.join(map(repr, unknown))}, which is not a detector; choose from {', '.join(DETECTORS)}."
        raise ConfigError([ConfigProblem("detectors.off", message)])
    own = [user_scanner(name, load_object(name, folder=recipe_dir)) for name in config.detectors.scanners]
    return (*(one for name, one in DETECTORS.items() if name not in config.detectors.off), *own)


def build_trials(config: Config, recipe_dir: Path, *, loop: asyncio.AbstractEventLoop | None = None) -> Trials | None:
    """Return the trials that detectors use to find out what the reward depends on, or None.

    There are no trials if the recipe has no reward function, if it uses an LLM judge (whose grades cost money), or if
    environments and rewards run in workers. Without trials, findings stay unconfirmed.
    """
    if config.environment.has_workers:
        return None
    reward, scorer = load_graders(config, recipe_dir)
    if reward is None or any(objects_reached(one, ModelJudge) for one in (reward, scorer) if one is not None):
        return None
    make_environment = None
    if config.environment.target is not None and not config.agent.is_foreign:
        make_environment, _ = load_environment(config, recipe_dir)
    return Trials(reward, scorer, make_environment=make_environment, max_turns=config.environment.max_turns, loop=loop)
