"""Grade an episode. The reward and the score each have a time limit, and are computed again after infrastructure
failures of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar, final

from sparring.agents.result import overtime
from sparring.errors import InfrastructureError, RewardError, WorkerLost
from sparring.rewards.rules import evaluate_reward
from sparring.rollouts.plan import Grading, RolloutLimits
from sparring.runtime.clock import Clock
from sparring.runtime.logs import get_logger
from sparring.sandbox.limits import programs_end
from sparring.scorers.score import evaluate_score
from sparring.types import Reward, Score, Trajectory
from sparring.workers import use_separate_workers

logger = get_logger(__name__)

Function = TypeVar("Function")
Grade = TypeVar("Grade")
_MAX_RETRIES = 2
_PAUSE_SECONDS = 0.5


@final
class Grader:
    """Applies the reward and the scorer of a recipe to finished episodes."""

    def __init__(self, grading: Grading, limits: RolloutLimits, clock: Clock) -> None:
        self._grading = grading
        self._seconds = limits.timeout_seconds
        self._max_retries = min(_MAX_RETRIES, limits.max_retries)
        self._sleep = clock.sleep

    @property
    def has_reward(self) -> bool:
        """Whether the recipe specifies a reward function."""
        return self._grading.reward is not None

    async def grade(self, trajectory: Trajectory, own_reward: Reward | None) -> tuple[Reward, Score | None]:
        """Return the reward and the score. If the agent reported a reward, that reward is used. The score is None if
        the recipe has no scorer.

        Raises InfrastructureError if the infrastructure of the reward or scorer fails, and RewardError for a reward that
        cannot be trusted, or does not return.
        """
        reward = own_reward
        if reward is None:
            assert self._grading.reward is not None, (
                "an episode without its own reward is graded by the recipe's reward function"
            )
            reward = await self._evaluate(evaluate_reward, self._grading.reward, trajectory)
        if self._grading.scorer is None:
            return reward, None
        return reward, await self._evaluate(evaluate_score, self._grading.scorer, trajectory)

    async def _evaluate(
        self, evaluate: Callable[[Function, Trajectory], Awaitable[Grade]], function: Function, trajectory: Trajectory
    ) -> Grade:
        """Return the result of a reward or scorer. The programs that this function runs are stopped at rollout_timeout,
        so that the policy's programs cannot make it exceed its own limit.

        After an infrastructure failure of its own, the function is called again. The episode is complete and need not be
        rolled out again. A function that does not return in time, or ends its worker process, is also called again, alone
        in a process. Raises RewardError if it does so again: then its code is the cause, as if it had raised an exception.
        If such an episode were lost instead, a policy could avoid the scores of its failures.
        """
        num_failures, is_suspect = 0, False
        while True:
            try:
                async with asyncio.timeout(self._seconds + overtime(self._seconds)):
                    with (
                        programs_end(time.monotonic() + self._seconds),
                        use_separate_workers() if is_suspect else nullcontext(),
                    ):
                        return await evaluate(function, trajectory)
            except TimeoutError as error:
                late = f"no result within rollout_timeout = {self._seconds:g} s and {overtime(self._seconds):g} s more"
                if is_suspect:
                    raise _blamed(function, trajectory, late) from error
                reason = late
            except WorkerLost as error:
                if is_suspect and not error.was_running:
                    raise
                if is_suspect:
                    raise _blamed(function, trajectory, str(error)) from error
                reason = str(error)
            except InfrastructureError as error:
                if num_failures >= self._max_retries:
                    raise
                num_failures += 1
                logger.warning("rollout %s is graded again: %s", trajectory.id, error)
                await self._sleep(_PAUSE_SECONDS)
                continue
            is_suspect = True
            logger.warning("rollout %s is graded again, alone: %s", trajectory.id, reason)


def _blamed(function: object, trajectory: Trajectory, reason: str) -> RewardError:
    name = getattr(function, "__name__", type(function).__name__)
    return RewardError(
        f"{name!r} failed twice on trajectory {trajectory.id}: {reason}. A reward or scorer must return for every text of "
        "the policy: limit the time of its regular expressions, parsers and programs, and catch what they raise. If a "
        "service that it calls is down, have it raise InfrastructureError."
    )
