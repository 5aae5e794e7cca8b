"""Load the user code of a recipe: agent, environments, reward and scorer, in this process or in workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparring.assembly.agent import Step, load_agent_and_environment
from sparring.assembly.environment import build_worker_pool
from sparring.assembly.graders import build_criterion, load_graders
from sparring.assembly.tasks import load_tasks
from sparring.config import Config
from sparring.environments import Environment
from sparring.evaluation.evaluation import SuccessCriterion
from sparring.protocols import RewardFunction, Scorer
from sparring.rollouts import Agent
from sparring.run_folders.recipe_files import check_links
from sparring.types import ToolSchema
from sparring.workers import grade_in_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """The loaded user code of a recipe."""

    agent: Agent
    close: Step | None
    """Closes the resources that the agent and the workers have opened."""
    wait_until_ready: Step | None
    """Waits until a worker can run an episode."""
    make_environment: Callable[[], Environment]
    tools: tuple[ToolSchema, ...]
    reward: RewardFunction | None
    scorer: Scorer | None
    criterion: SuccessCriterion


def load_user_code(
    config: Config, recipe_dir: Path, announce: Callable[[str], object], folder: Path | None = None
) -> UserCode:
    """Load the user code. The output of workers on a cluster goes to `folder`, or to a temporary folder.

    Raises UsageError for objects that are missing or not callable. Raises DataError for a linked file that is missing or
    has changed.
    """
    check_links(recipe_dir)
    pool = build_worker_pool(config, recipe_dir, announce, folder)
    agent, close, make_environment, tools = load_agent_and_environment(config, recipe_dir, announce, pool)
    reward, scorer = load_graders(config, recipe_dir)
    criterion = build_criterion(config, reward, scorer)
    if pool is not None:
        reward = None if reward is None else grade_in_workers(pool, "reward", reward)
        scorer = None if scorer is None else grade_in_workers(pool, "scorer", scorer)
        close = _both(close, pool.aclose)
    return UserCode(
        agent=agent,
        close=close,
        wait_until_ready=None if pool is None else pool.wait_until_ready,
        make_environment=make_environment,
        tools=tools,
        reward=reward,
        scorer=scorer,
        criterion=criterion,
    )


def check_code_and_data(config: Config, recipe_dir: Path) -> None:
    """Load the user code and the data of a recipe, without a model. Raises the errors of `load_user_code` and
    `load_tasks`."""
    load_user_code(config, recipe_dir, lambda _: None)
    load_tasks(config, recipe_dir)


def _both(first: Step | None, second: Step) -> Step:
    async def close() -> None:
        try:
            if first is not None:
                await first()
        finally:
            await second()

    return close
