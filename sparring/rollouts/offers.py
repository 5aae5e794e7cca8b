"""An estimate of the reward on all tasks that were offered, from the episodes of those that were selected.

A selection changes which tasks a step has, so the mean reward of a step changes even if the policy does not. To show
whether the policy learns, each group stands for its own offer and for the offers before it that were skipped. The
estimate is the difference estimator of survey sampling (Särndal, Swensson and Wretman 1992, section 6.3): the mean that
the past results predict for all offers, corrected by what the groups earned beyond it, each divided by the share of its
offers that are rolled out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple, Self, final

from sparring.types import TrajectoryGroup


class Means(NamedTuple):
    """A mean reward and a mean score."""

    reward: float = 0.0
    score: float = 0.0


class Result(NamedTuple):
    """The results of episodes."""

    successes: int
    episodes: int
    rewards: float
    """The sum of the rewards."""
    scores: float
    """The sum of the scores. An episode without a score counts as 0."""

    @classmethod
    def of(cls, groups: Sequence[TrajectoryGroup], success_threshold: float) -> Self:
        """Return the result of the episodes of groups. An episode whose reward is at least `success_threshold` is a
        success."""
        rewards = [reward for group in groups for reward in group.rewards]
        scores = [trajectory.score or 0.0 for group in groups for trajectory in group.trajectories]
        successes = sum(reward >= success_threshold for reward in rewards)
        return cls(successes, len(rewards), sum(rewards), sum(scores))

    @classmethod
    def read(cls, stored: Sequence[float]) -> Self:
        """Return a result from a checkpoint. Earlier versions stored only successes and episodes."""
        successes, episodes, *sums = stored
        return cls(int(successes), int(episodes), *(sums or (successes, successes)))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """The offers for which a group stands."""

    share: float = 1.0
    """The share of the offers of the group's task that are rolled out."""
    expected: Means = field(default_factory=Means)
    """The past results of the group's task."""
    skipped: Sequence[Means] = ()
    """The past results of the tasks that were offered since the previous group, and skipped."""

    @property
    def count(self) -> int:
        return 1 + len(self.skipped)

    def estimate(self, name: str, earned: float) -> float:
        """Return the estimated sum over these offers, for a group whose mean is `earned`. `name` is a field of Means."""
        own = getattr(self.expected, name)
        return sum(getattr(one, name) for one in self.skipped) + own + (earned - own) / self.share


def mean_of(history: Sequence[Result]) -> Means:
    """Return the means over all episodes of a history."""
    episodes = max(1, sum(one.episodes for one in history))
    return Means(sum(one.rewards for one in history) / episodes, sum(one.scores for one in history) / episodes)


def offered_metrics(played: Sequence[tuple[TrajectoryGroup, Offers]]) -> dict[str, float]:
    """Return the estimated mean reward and score of a step if all offered tasks had been rolled out. Each group has
    episodes. The score is missing if a group has none."""
    if not played:
        return {}
    offered = sum(offers.count for _, offers in played)
    earned = sum(offers.estimate("reward", fmean(group.rewards)) for group, offers in played)
    metrics = {"rollout/reward/offered_mean": earned / offered}
    scores = [[one.score for one in group.trajectories if one.score is not None] for group, _ in played]
    if all(scores):
        scored = sum(offers.estimate("score", fmean(own)) for (_, offers), own in zip(played, scores, strict=True))
        metrics["rollout/score/offered_mean"] = scored / offered
    return metrics
