"""Who judges the episodes of a recipe: its reward, its scorer, its detectors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sparring.build.environment import environment_of
from sparring.config import Config
from sparring.detectors import DETECTORS, Detector, user_scanner
from sparring.detectors.trials import Trials
from sparring.errors import ConfigError, ConfigProblem, UsageError
from sparring.evaluation.evaluation import Judge
from sparring.evaluation.independence import independence, objects_reached
from sparring.plugins import load_object
from sparring.protocols import RewardFunction, Scorer
from sparring.rewards.judge import Judge as ModelJudge


def judges_of(config: Config, recipe_dir: Path) -> tuple[RewardFunction | None, Scorer | None]:
    """The reward and the scorer, as far as the recipe names them. Raises UsageError for what cannot be called."""
    reward, scorer = (_judge(f"reward.{key}", getattr(config.reward, key), recipe_dir) for key in ("reward", "scorer"))
    return reward, scorer


def _judge(key: str, name: str | None, recipe_dir: Path) -> Any:
    if name is None:
        return None
    found = load_object(name, beside=recipe_dir)
    if not callable(found):
        raise UsageError(
            f"{key} = {name!r} is {found!r:.200}, which cannot be called; name a function that takes a trajectory and returns a "
            "number."
        )
    return found


def judged_by(config: Config, reward: RewardFunction | None, scorer: Scorer | None) -> Judge:
    return Judge(
        scorer=config.reward.scorer, independence=independence(reward, scorer),
        success_threshold=config.evaluation.success_threshold,
    )  # fmt: skip


def load_detectors(config: Config, recipe_dir: Path) -> tuple[Detector, ...]:
    """Those that are not off, and the recipe's own scanners. Raises ConfigError for a name that no detector has."""
    unknown = [name for name in config.detectors.off if name not in DETECTORS]
    if unknown:
        message = f"names {', '.join(map(repr, unknown))}, which is no detector; there are {', '.join(DETECTORS)}."
        raise ConfigError([ConfigProblem("detectors.off", message)])
    own = [user_scanner(name, load_object(name, beside=recipe_dir)) for name in config.detectors.scanners]
    return (*(one for name, one in DETECTORS.items() if name not in config.detectors.off), *own)


def trials_of(config: Config, recipe_dir: Path, *, loop: asyncio.AbstractEventLoop | None = None) -> Trials | None:
    """Where detectors find out what the reward depends on. None without a reward function, where an LLM judge is asked, since its
    verdicts cost money, and where environments and rewards are in workers: what is paid stays unconfirmed there."""
    if config.environment.workers:
        return None
    reward, scorer = judges_of(config, recipe_dir)
    if reward is None or any(objects_reached(one, ModelJudge) for one in (reward, scorer) if one is not None):
        return None
    make_environment = None
    if config.environment.target is not None and not config.agent.is_foreign:
        make_environment, _ = environment_of(config, recipe_dir)
    return Trials(
        reward, scorer, make_environment=make_environment, max_turns=config.environment.max_turns, loop=loop
    )  # fmt: skip
