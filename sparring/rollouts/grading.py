"""Grades an episode: its reward and its score, each within a time limit and repeated after its own infrastructure failures."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, final

from sparring.agents.result import overtime
from sparring.errors import InfrastructureError, WorkerLost
from sparring.rewards.rules import evaluate_reward
from sparring.rollouts.plan import Grading, RolloutLimits
from sparring.runtime.clock import Clock
from sparring.runtime.logs import get_logger
from sparring.sandbox.limits import programs_end
from sparring.scorers.score import evaluate_score
from sparring.types import Reward, Score, Trajectory

logger = get_logger(__name__)

Function = TypeVar("Function")
Grade = TypeVar("Grade")
_MAX_RETRIES = 2
_PAUSE_SECONDS = 0.5


@final
class Grader:
    """Applies the reward and the scorer of a recipe to episodes that are over."""

    def __init__(self, grading: Grading, limits: RolloutLimits, clock: Clock) -> None:
        self._grading = grading
        self._seconds = limits.timeout_seconds
        self._max_retries = min(_MAX_RETRIES, limits.max_retries)
        self._sleep = clock.sleep

    @property
    def has_reward(self) -> bool:
        """Whether the recipe names a reward function."""
        return self._grading.reward is not None

    async def grade(self, trajectory: Trajectory, own_reward: Reward | None) -> tuple[Reward, Score | None]:
        """Return the reward, which is the agent's own where it reported one, and the score, where the recipe has a scorer.

        Raises TimeoutError without an answer in time, InfrastructureError when the infrastructure of reward or scorer fails,
        and RewardError for a reward that cannot be trusted.
        """
        reward = own_reward
        if reward is None:
            assert self._grading.reward is not None, "an episode without a reward of its own is graded by the recipe's"
            reward = await self._evaluate(evaluate_reward, self._grading.reward, trajectory)
        if self._grading.scorer is None:
            return reward, None
        return reward, await self._evaluate(evaluate_score, self._grading.scorer, trajectory)

    async def _evaluate(
        self, evaluate: Callable[[Function, Trajectory], Awaitable[Grade]], function: Function, trajectory: Trajectory
    ) -> Grade:
        """Return what a reward or scorer returns. The programs that it runs are stopped at rollout_timeout, so that the
        policy's programs cannot make it late. After an infrastructure failure of its own it is called again; the episode is
        complete and need not be rolled out again."""
        for attempt in itertools.count():
            try:
                async with asyncio.timeout(self._seconds + overtime(self._seconds)):
                    with programs_end(time.monotonic() + self._seconds):
                        return await evaluate(function, trajectory)
            except InfrastructureError as error:
                if attempt >= self._max_retries or isinstance(error, WorkerLost):
                    raise
                logger.warning("rollout %s is graded again: %s", trajectory.id, error)
                await self._sleep(_PAUSE_SECONDS)
        raise AssertionError("counts without end")
