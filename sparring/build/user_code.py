"""What a recipe brings as code: who plays, in which environments, and who judges, in this process or in workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparring.build.agent import Closing, player_of
from sparring.build.environment import worker_pool
from sparring.build.judging import judged_by, judges_of
from sparring.config import Config
from sparring.environments import Environment
from sparring.evaluation.evaluation import Judge
from sparring.protocols import RewardFunction, Scorer
from sparring.rollouts import Agent
from sparring.tracking.recipe_files import check_links
from sparring.types import ToolSchema
from sparring.workers import judged_in


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    agent: Agent
    close: Closing | None
    """Ends what agent and workers have opened."""
    make_environment: Callable[[], Environment]
    tools: tuple[ToolSchema, ...]
    reward: RewardFunction | None
    scorer: Scorer | None
    judge: Judge


def user_code_of(config: Config, recipe_dir: Path, announce: Callable[[str], object]) -> UserCode:
    """Raises UsageError for what is not there or cannot be called, DataError for a file that a run only links to and that is
    missing or has changed."""
    check_links(recipe_dir)
    pool = worker_pool(config, recipe_dir)
    agent, close, make_environment, tools = player_of(config, recipe_dir, announce, pool)
    reward, scorer = judges_of(config, recipe_dir)
    judge = judged_by(config, reward, scorer)
    if pool is not None:
        reward = None if reward is None else judged_in(pool, "reward", reward)
        scorer = None if scorer is None else judged_in(pool, "scorer", scorer)
        close = _both(close, pool.aclose)
    return UserCode(
        agent=agent, close=close, make_environment=make_environment, tools=tools, reward=reward, scorer=scorer, judge=judge
    )  # fmt: skip


def _both(first: Closing | None, second: Closing) -> Closing:
    async def close() -> None:
        try:
            if first is not None:
                await first()
        finally:
            await second()

    return close
