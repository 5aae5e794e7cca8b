"""Grading stored episodes with a changed reward or scorer, which shows the effect of the change before training."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparring.config import Config, load_config
from sparring.errors import DataError, InfrastructureError, ServiceError, UsageError
from sparring.evaluation.agreement import Agreement, agreement
from sparring.evaluation.independence import Independence, independence
from sparring.metering.usage import EndpointUsage, meter_usage, read_usage
from sparring.protocols import RewardFunction, Scorer
from sparring.rewards import evaluate_reward
from sparring.run_folders import RunFolder
from sparring.run_folders.recipe_files import find_code_folder
from sparring.run_folders.stored import read_trajectories
from sparring.runtime import interrupts
from sparring.runtime.plugins import load_object
from sparring.scorers import evaluate_score
from sparring.types import Trajectory

MOST_UNPAID = 0.1
"""The share of correct answers that may earn no more than an incorrect one before a review rejects the reward."""
_AT_ONCE = 8
"""The number of episodes graded concurrently, for graders that wait for something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """The agreement of a recipe's reward and scorer on stored episodes, and the agreement at the time when the episodes
    were collected."""

    episodes: tuple[str, ...]
    """The names of the files that were read, such as `train-10`."""
    before: Agreement
    """The agreement of the stored rewards and scores."""
    after: Agreement
    independence: Independence
    num_changed: int
    """The number of episodes whose reward changed."""
    mean_before: float | None
    mean_after: float
    endpoints: tuple[EndpointUsage, ...]
    """The requests and tokens of endpoints that LLM judges used."""
    prices: Mapping[str, float]

    @property
    def refusal(self) -> str | None:
        """The reason not to train on this reward: an incorrect answer is rewarded, or correct answers earn no more than
        incorrect ones. None if neither is the case."""
        found, first = self.after, next(iter(self.after.disagreements), None)
        if first is None:
            return None
        if found.paid_wrong:
            return (
                f"{found.paid_wrong} of {found.num} episodes are paid for an answer that the scorer rejects, such as "
                f"{first.trajectory_id}; make the reward check what the scorer checks, and review again."
            )
        num_right = found.both_right + found.unpaid_right
        if found.unpaid_right <= MOST_UNPAID * num_right:
            return None
        return (
            f"{found.unpaid_right} of {num_right} right answers earn no more than a wrong one, such as "
            f"{first.trajectory_id}, and {found.num_inverted} of {found.num_pairs} pairs of a task are "
            "inverted. Advantages would therefore not teach what is right; make the reward higher where the score is "
            "higher, and review again."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the content as JSON data."""
        return {
            "format": 1,
            "episodes": list(self.episodes),
            "independence": self.independence,
            "num_changed": self.num_changed,
            "reward_mean_before": self.mean_before,
            "reward_mean_after": self.mean_after,
            "before": self.before.as_json(),
            "after": self.after.as_json(),
            "refusal": self.refusal,
            "endpoints": [one.as_json(self.prices) for one in self.endpoints],
        }


def review(run: Path, recipe: Path | None = None, *, episodes: str | None = None) -> Review:
    """Grade the episodes of a run or recording with the reward and scorer of `recipe`, or by default with those of the
    run.

    `episodes` is the name of a file (`validation-10`), or a split, which selects the newest file of that split. By
    default, the newest file of each split is used. Nothing is written. Raises UsageError if the reward or the scorer is
    not given, DataError if no such episodes are stored, RewardError if one of the two does not return a number, and
    ServiceError if its infrastructure fails.
    """
    path = recipe or RunFolder(run).recipe
    folder = path if path.is_dir() else find_code_folder(path)
    config = RunFolder(run).config() if recipe is None else load_config(path)
    reward, scorer = _load_graders(config, folder, path)
    files = _files(run, episodes)
    stored = [one for file in files for one in read_trajectories(file)]
    if not stored:
        raise DataError(f"{', '.join(map(str, files))} contain no episode; name other episodes.")
    graded, endpoints = _grade_metered(stored, reward, scorer)
    pairs = _reward_pairs(stored, graded)
    threshold = config.evaluation.success_threshold
    return Review(
        episodes=tuple(file.stem for file in files),
        before=agreement(stored, success_threshold=threshold),
        after=agreement(graded, success_threshold=threshold),
        independence=independence(reward, scorer),
        num_changed=sum(abs(before - after) > 1e-9 for before, after in pairs),
        mean_before=sum(before for before, _ in pairs) / len(pairs) if pairs else None,
        mean_after=sum(one.reward.total for one in graded if one.reward) / len(graded),
        endpoints=endpoints,
        prices=config.tracking.prices,
    )


def _load_graders(config: Config, folder: Path, path: Path) -> tuple[RewardFunction, Scorer]:
    named = {"reward": config.reward.reward, "scorer": config.reward.scorer}
    for key, name in named.items():
        if name is None:
            raise UsageError(
                f"{path} has no reward.{key}, so there is nothing to compare; specify a function: 'environment:{key}'."
            )
    reward, scorer = (load_object(str(name), folder=folder) for name in named.values())
    return reward, scorer


def _files(run: Path, episodes: str | None) -> list[Path]:
    stored = sorted((run / "trajectories").glob("*.jsonl"), key=_number)
    newest = {file.stem.rpartition("-")[0]: file for file in stored}
    named = {file.stem: file for file in stored} | newest
    found = list(newest.values()) if episodes is None else [named[episodes]] if episodes in named else []
    if not found:
        there = ", ".join(file.stem for file in newest.values()) or "none"
        raise DataError(f"{run} has no episodes {episodes or ''!r}; its newest episodes are: {there}.")
    return found


def _number(file: Path) -> int:
    number = file.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _grade_metered(
    stored: Sequence[Trajectory], reward: RewardFunction, scorer: Scorer
) -> tuple[list[Trajectory], tuple[EndpointUsage, ...]]:
    """Return the trajectories with their new grades, and the usage of endpoints for grading."""
    with tempfile.TemporaryDirectory(prefix="sparring-review-") as counted:
        with meter_usage(Path(counted), during="review"):
            graded = interrupts.run(_grade(stored, reward, scorer))
        return graded, tuple(read_usage(Path(counted)))


def _reward_pairs(stored: Sequence[Trajectory], graded: Sequence[Trajectory]) -> list[tuple[float, float]]:
    """Return the stored and the new reward of each episode that has both."""
    return [
        (one.reward.total, other.reward.total)
        for one, other in zip(stored, graded, strict=True)
        if one.reward is not None and other.reward is not None
    ]


async def _grade(stored: Sequence[Trajectory], reward: RewardFunction, scorer: Scorer) -> list[Trajectory]:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def judge(trajectory: Trajectory) -> Trajectory:
        # Restore the end of the episode: reward and scorer do not see each other's grade, or an earlier grade.
        bare = replace(trajectory, reward=None, score=None, score_parts={})
        async with slots:
            try:
                given = await evaluate_reward(reward, bare)
                score = await evaluate_score(scorer, bare)
            except InfrastructureError as error:
                raise ServiceError(f"{trajectory.id} could not be graded: {error}") from error
        return replace(trajectory, reward=given, score=score.value, score_parts=score.parts)

    return list(await asyncio.gather(*map(judge, stored)))
