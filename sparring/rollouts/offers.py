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
from typing import NamedTuple, Self, TypeAlias, final

from sparring.types import Json, TrajectoryGroup


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
    """The offers for which a group stands: its own, and those since the previous group, which were skipped."""

    share: float = 1.0
    """The share of the offers of the group's task that are rolled out."""
    expected: Means = field(default_factory=Means)
    """The past results of the group's task."""
    num_skipped: int = 0
    skipped: Means = field(default_factory=Means)
    """The sums of the past results of the skipped tasks."""

    @classmethod
    def after(cls, skipped: Sequence[Means], *, share: float, expected: Means) -> Self:
        """Return the offers of a group after these tasks were skipped."""
        sums = Means(sum(one.reward for one in skipped), sum(one.score for one in skipped))
        return cls(share=share, expected=expected, num_skipped=len(skipped), skipped=sums)

    @classmethod
    def from_json(cls, stored: Sequence[Json]) -> Self:
        share, expected, num_skipped, skipped = stored
        return cls(share=share, expected=Means(*expected), num_skipped=num_skipped, skipped=Means(*skipped))

    def as_json(self) -> list[Json]:
        return [self.share, list(self.expected), self.num_skipped, list(self.skipped)]

    @property
    def is_choice(self) -> bool:
        """Whether the group was, or could have been, chosen over others."""
        return self.share < 1 or self.num_skipped > 0

    def estimate(self, name: str, earned: float) -> float:
        """Return the estimated sum over these offers, for a group whose mean is `earned`. `name` is a field of Means."""
        own = getattr(self.expected, name)
        return getattr(self.skipped, name) + own + (earned - own) / self.share


def mean_of(history: Sequence[Result]) -> Means:
    """Return the means over all episodes of a history."""
    episodes = max(1, sum(one.episodes for one in history))
    return Means(sum(one.rewards for one in history) / episodes, sum(one.scores for one in history) / episodes)


Played: TypeAlias = tuple[TrajectoryGroup, Offers]
"""A group with at least one episode, and the offers for which it stands."""


def offered_metrics(groups: Sequence[Played], replaced: Sequence[Played] = ()) -> dict[str, float]:
    """Return the estimated mean reward and score of a step if all offered tasks had been rolled out, and none replaced.

    There are no metrics if nothing was chosen, and no score if a group has none. A step ends with a group that is kept, so
    the estimate is somewhat too high in steps of few groups.
    """
    played = [*groups, *replaced]
    if not played or not (replaced or any(offers.is_choice for _, offers in played)):
        return {}
    num_offers = sum(1 + offers.num_skipped for _, offers in played)
    rewards = sum(offers.estimate("reward", fmean(group.rewards)) for group, offers in played)
    metrics = {"rollout/reward/offered_mean": rewards / num_offers}
    scores = [[one.score for one in group.trajectories if one.score is not None] for group, _ in played]
    if all(scores):
        estimates = (offers.estimate("score", fmean(own)) for (_, offers), own in zip(played, scores, strict=True))
        metrics["rollout/score/offered_mean"] = sum(estimates) / num_offers
    return metrics
