"""The metrics of an evaluation, computed from its groups of episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, pstdev
from typing import final

from sparring.evaluation.agreement import Agreement, agreement
from sparring.evaluation.statistics import pass_at_k, pass_power_k
from sparring.rollouts.metrics import count_refusals, logprob_metrics, outcome_shares, score_part_means
from sparring.types import Outcome, Task, Trajectory, TrajectoryGroup


@final
@dataclass(frozen=True)
class GradedGroups:
    """Groups of episodes with their scores. Sequences contain one number per task. Tasks without an episode are left
    out."""

    groups: Sequence[TrajectoryGroup]
    """All groups, including groups whose episodes were all lost."""
    success_threshold: float

    @cached_property
    def known(self) -> list[TrajectoryGroup]:
        """The groups with at least one episode."""
        return [group for group in self.groups if group.trajectories]

    @cached_property
    def episodes(self) -> list[Trajectory]:
        """The episodes of all groups."""
        return [one for group in self.known for one in group.trajectories]

    @cached_property
    def rewards(self) -> list[float]:
        """The total rewards of the episodes that have one."""
        return [one.reward.total for one in self.episodes if one.reward is not None]

    @cached_property
    def values(self) -> list[list[float]]:
        """The scores of the episodes, grouped by task, or their rewards if there is no scorer."""
        return [
            [one.score if one.score is not None else one.reward.total for one in group.trajectories if one.reward]
            for group in self.known
        ]

    @cached_property
    def scores(self) -> list[float]:
        """The mean score of each task."""
        return [fmean(values) for values in self.values]

    @cached_property
    def successes(self) -> list[int]:
        """The number of successful episodes of each task."""
        return [sum(value >= self.success_threshold for value in values) for values in self.values]

    @cached_property
    def timed_out(self) -> list[int]:
        """The number of episodes of each task that did not finish in time and are no success."""
        graded = [[one for one in group.trajectories if one.reward] for group in self.known]
        return [
            sum(
                one.outcome is Outcome.POLICY_TIMEOUT and value < self.success_threshold
                for one, value in zip(ones, values, strict=True)
            )
            for ones, values in zip(graded, self.values, strict=True)
        ]

    @cached_property
    def samples(self) -> list[int]:
        """The number of episodes of each task."""
        return [len(values) for values in self.values]

    @cached_property
    def rates(self) -> list[float]:
        """The success rate of each task."""
        return [c / n for c, n in zip(self.successes, self.samples, strict=True)]

    @cached_property
    def completions(self) -> list[float]:
        """For each task, the share of its episodes that finished."""
        return [fmean(one.outcome is Outcome.FINISHED for one in group.trajectories) for group in self.known]

    @cached_property
    def turns(self) -> list[float]:
        """The mean number of turns of each task's episodes."""
        return [fmean(len(one.turns) for one in group.trajectories) for group in self.known]

    @cached_property
    def agreement(self) -> Agreement:
        """The agreement of reward and scorer over all episodes."""
        return agreement(self.episodes, success_threshold=self.success_threshold)

    def metrics(
        self, prefix: str, *, pass_k_values: Sequence[int] | None, kind_of: Callable[[Task], str] | None
    ) -> dict[str, float]:
        """Return all metrics. Each name starts with `prefix/`. At least one episode is required."""
        parts = (
            _reward_metrics(self, prefix),
            _episode_metrics(self, prefix),
            _token_metrics(self, prefix),
            _kind_metrics(self, prefix, kind_of),
            _pass_metrics(self, prefix, pass_k_values),
        )
        return {name: value for part in parts for name, value in part}


def passes(samples: Sequence[int], successes: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Return pass@k and pass^k, keyed by k, for every k up to the smallest number of episodes per task."""
    pairs = list(zip(samples, successes, strict=True))
    return {
        k: (fmean(pass_at_k(n, c, k) for n, c in pairs), fmean(pass_power_k(n, c, k) for n, c in pairs))
        for k in range(1, min(samples) + 1)
    }


def _reward_metrics(graded: GradedGroups, prefix: str) -> Iterator[tuple[str, float]]:
    rewards, succeeded = graded.rewards, sum(graded.successes)
    yield f"{prefix}/score/mean", fmean(graded.scores)
    yield f"{prefix}/reward/mean", fmean(rewards)
    yield f"{prefix}/reward/std", pstdev(rewards)
    yield f"{prefix}/reward/min", min(rewards)
    yield f"{prefix}/reward/max", max(rewards)
    yield f"{prefix}/reward/zero_frac", fmean(reward == 0 for reward in rewards)
    yield f"{prefix}/reward/num_prompts", float(len(graded.known))
    yield f"{prefix}/reward/rollouts_per_prompt", fmean(graded.samples)
    yield f"{prefix}/reward/success_threshold", graded.success_threshold
    yield f"{prefix}/reward/succeeded_rollouts", float(succeeded)
    yield f"{prefix}/reward/failed_rollouts", float(sum(graded.samples) - succeeded)
    # The lowest, mean and highest reward and the standard deviation within a task's episodes, averaged over tasks.
    for name, measure in {"min": min, "mean": fmean, "max": max, "std": pstdev}.items():
        yield f"{prefix}/reward/{name}_within_groups", fmean(measure(group.rewards) for group in graded.known)
    for name, value in graded.agreement.metrics().items():
        yield f"{prefix}/agreement/{name}", value
    for name, mean in score_part_means(graded.episodes).items():
        yield f"{prefix}/score/parts/{name}", mean
    gaps = [one.reward.total - one.score for one in graded.episodes if one.reward and one.score is not None]
    if gaps:
        yield f"{prefix}/reward_minus_score", fmean(gaps)


def _episode_metrics(graded: GradedGroups, prefix: str) -> Iterator[tuple[str, float]]:
    groups, episodes = graded.groups, graded.episodes
    refused, not_read = count_refusals(groups)
    yield f"{prefix}/completion", fmean(graded.completions)
    yield f"{prefix}/turns/mean", fmean(graded.turns)
    yield f"{prefix}/turns/min", float(min(len(one.turns) for one in episodes))
    yield f"{prefix}/turns/max", float(max(len(one.turns) for one in episodes))
    for name, value in logprob_metrics(episodes, num_groups=len(graded.known)).items():
        yield f"{prefix}/logprob/{name.rpartition('/')[2]}", value
    for outcome, share in outcome_shares(groups).items():
        yield f"{prefix}/outcome/{outcome}", share
    yield f"{prefix}/lost_rollouts", float(sum(group.num_lost for group in groups))
    yield f"{prefix}/client_errors", float(sum(group.num_client_errors for group in groups))
    yield f"{prefix}/unrewarded", float(sum(group.num_unrewarded for group in groups))
    yield f"{prefix}/refused_requests", float(refused.total())
    for reason, number in sorted(refused.items()):
        yield f"{prefix}/refused/{reason}", float(number)
    for field, number in sorted(not_read.items()):
        yield f"{prefix}/not_read/{field}", float(number)
    yield f"{prefix}/policy_timeouts", float(sum(one.outcome is Outcome.POLICY_TIMEOUT for one in episodes))


def _token_metrics(graded: GradedGroups, prefix: str) -> Iterator[tuple[str, float]]:
    if not all(turn.token_ids or turn.usage is not None for one in graded.episodes for turn in one.turns):
        return
    prompts = [turn.num_prompt_tokens for one in graded.episodes for turn in one.turns]
    yield f"{prefix}/tokens/prompt_mean", fmean(prompts or [0])
    responses = [one.num_sampled_tokens for one in graded.episodes]
    yield f"{prefix}/tokens/response_mean", fmean(responses)
    yield f"{prefix}/tokens/response_std", pstdev(responses)
    yield f"{prefix}/tokens/response_min", float(min(responses))
    yield f"{prefix}/tokens/response_max", float(max(responses))


def _kind_metrics(
    graded: GradedGroups, prefix: str, kind_of: Callable[[Task], str] | None
) -> Iterator[tuple[str, float]]:
    if kind_of is None:
        return
    kinds: Mapping[str, list[float]] = defaultdict(list)
    for group, rate in zip(graded.known, graded.rates, strict=True):
        kinds[kind_of(group.task)].append(rate)
    for kind, rates in sorted(kinds.items()):
        yield f"{prefix}/kind/{kind}/success", fmean(rates)


def _pass_metrics(
    graded: GradedGroups, prefix: str, pass_k_values: Sequence[int] | None
) -> Iterator[tuple[str, float]]:
    for k, (at_k, power_k) in passes(graded.samples, graded.successes).items():
        if pass_k_values is None or k in pass_k_values:
            yield f"{prefix}/reward/pass_at_{k}", at_k
            yield f"{prefix}/reward/pass_power_{k}", power_k
