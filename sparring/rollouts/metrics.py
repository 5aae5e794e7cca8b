"""Metrics of rollouts. A metric that SageMaker MTRL also has gets the same name. See docs/metrics.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev

from sparring.models.token_tree import common_prefix, count_nodes
from sparring.rollouts.actions import action_metrics
from sparring.sessions.branching import BranchReason, reason_of
from sparring.training.sequences import sequence_ids
from sparring.types import Outcome, StopReason, Task, TrainingBatch, Trajectory, TrajectoryGroup, Turn, UntrainedReason

MOST_PLACES = 16
"""The number of an episode's first turns whose mean rewards are logged separately."""


def rollout_metrics(
    groups: Sequence[TrajectoryGroup],
    advantages: Mapping[str, Sequence[float]],
    *,
    version: int,
    replaced: Sequence[TrajectoryGroup] = (),
    lost: Sequence[TrajectoryGroup] = (),
    success_threshold: float = 1.0,
) -> dict[str, float]:
    """Return the rollout metrics of one step.

    `groups` contains the step's groups, each of which has trajectories. `version` is the policy version that is
    trained. `replaced` contains groups without signal that other groups of the step replaced, and `lost` contains the
    groups that were lost as a whole."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        **_reward_metrics(groups, trajectories, advantages),
        **_length_metrics(trajectories),
        **_policy_metrics(trajectories),
        **logprob_metrics(trajectories, num_groups=len(groups)),
        **_group_metrics(groups, advantages),
        **_staleness_metrics(trajectories, version),
        **_time_metrics(trajectories),
        **action_metrics(trajectories),
        **_silence_metrics([*groups, *replaced], success_threshold),
        "rollout/replaced_groups": float(len(replaced)),
        **{f"rollout/outcome/{outcome}": share for outcome, share in outcome_shares([*groups, *lost]).items()},
        "rollout/lost": float(sum(group.num_lost for group in [*groups, *lost])),
        **_refusal_metrics([*groups, *replaced, *lost]),
    }


def _reward_metrics(
    groups: Sequence[TrajectoryGroup], trajectories: Sequence[Trajectory], advantages: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    rewards = [reward for group in groups for reward in group.rewards]
    valid = [r for group in groups if _has_signal(group, advantages) for r in group.rewards]
    metrics = {
        "rollout/reward/mean": fmean(rewards),
        "rollout/reward/std": pstdev(rewards),
        "rollout/reward/min": min(rewards),
        "rollout/reward/max": max(rewards),
        "rollout/reward/zero_frac": fmean(reward == 0 for reward in rewards),
    }
    if valid:
        metrics["rollout/reward/valid_mean"] = fmean(valid)
    scores = [trajectory.score for trajectory in trajectories if trajectory.score is not None]
    if scores:
        metrics["rollout/score/mean"] = fmean(scores)
    metrics |= {f"rollout/score/parts/{name}": mean for name, mean in score_part_means(trajectories).items()}
    for kind in ("components", "metrics"):
        names = sorted({name for t in trajectories if t.reward is not None for name in getattr(t.reward, kind)})
        for name in names:
            values = [
                getattr(t.reward, kind)[name] for t in trajectories if t.reward and name in getattr(t.reward, kind)
            ]
            metrics[f"rollout/reward/{kind}/{name}"] = fmean(values)
    for name in sorted({name for trajectory in trajectories for name in trajectory.metrics}):
        metrics[f"rollout/agent/{name}"] = fmean(t.metrics.get(name, 0.0) for t in trajectories)
    values = [advantage for trajectory in trajectories for advantage in advantages[trajectory.id]] or [0.0]
    return (
        metrics
        | _turn_reward_metrics(trajectories)
        | {
            "rollout/advantage/mean": fmean(values),
            "rollout/advantage/std": pstdev(values),
            "rollout/advantage/min": min(values),
            "rollout/advantage/max": max(values),
            "rollout/advantage/n_positive": float(sum(value > 0 for value in values)),
            "rollout/advantage/n_negative": float(sum(value < 0 for value in values)),
        }
    )


def _turn_reward_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean reward for each position of a turn, over the episodes with one reward per turn."""
    rewards: dict[int, list[float]] = {}
    for trajectory in trajectories:
        per_turn = None if trajectory.reward is None else trajectory.reward.per_turn
        for place, turn in enumerate(trajectory.turns[:MOST_PLACES] if per_turn is not None else ()):
            rewards.setdefault(place, []).append((per_turn or {}).get(turn.id, 0.0))
    return {f"rollout/reward/turn/{place}": fmean(values) for place, values in sorted(rewards.items())}


def score_part_means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean of each sub-score over the episodes that have it, keyed by name."""
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.score_parts.items():
            values.setdefault(name, []).append(value)
    return {name: fmean(values[name]) for name in sorted(values)}


def _length_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    num_turns = [len(trajectory.turns) for trajectory in trajectories]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    responses = [len(turn.token_ids) for turn in turns] or [0]
    last = [turn for trajectory in trajectories for turn in {turn.policy: turn for turn in trajectory.turns}.values()]
    needed = sum(len(turn.prompt_ids) + len(turn.token_ids) for turn in last)
    prompts = sum(len(turn.prompt_ids) for turn in turns)
    computed = sum(turn.num_computed_tokens for turn in turns)
    # Keys and values that were computed with one version of the weights cannot be used with another version.
    histories: dict[int, list[tuple[int, ...]]] = {}
    for trajectory in trajectories:
        # The turn that extends a turn contains all its tokens.
        extended = {(turn.parent, turn.oldest_version) for turn in trajectory.turns}
        for turn in trajectory.turns:
            if (turn.id, turn.oldest_version) not in extended:
                histories.setdefault(turn.oldest_version, []).append(turn.prompt_ids + turn.token_ids)
    distinct = sum(map(count_nodes, histories.values()))
    cut = [any(turn.stop_reason is StopReason.LENGTH for turn in one.turns) for one in trajectories]
    return {
        "rollout/turns/mean": fmean(num_turns),
        "rollout/turns/min": float(min(num_turns)),
        "rollout/turns/max": float(max(num_turns)),
        "rollout/tokens/prompt_mean": fmean([len(turn.prompt_ids) for turn in turns] or [0]),
        "rollout/tokens/response_mean": fmean(responses),
        "rollout/tokens/response_std": pstdev(responses),
        "rollout/tokens/response_min": float(min(responses)),
        "rollout/tokens/response_max": float(max(responses)),
        "rollout/tokens/sampled": float(sum(responses)),
        "rollout/tokens/computed": float(computed),
        "rollout/tokens/cached_share": max(0.0, 1 - computed / max(1, prompts + sum(responses))),
        "rollout/tokens/distinct": float(distinct),
        "rollout/tokens/computed_per_distinct": computed / max(1, distinct),
        "rollout/tokens/of_episodes": float(needed),
        "training/action_tokens_mean": sum(responses) / len(trajectories),
        "training/obs_tokens_mean": (needed - sum(responses)) / len(trajectories),
        "rollout/truncated_episodes": fmean(cut),
        "rollout/truncated_turns": fmean([turn.stop_reason is StopReason.LENGTH for turn in turns] or [0]),
        "rollout/untrained_turns": fmean([not turn.is_trained for turn in turns] or [0]),
        "rollout/overruled_turns": fmean([turn.untrained_reason is UntrainedReason.OVERRULED for turn in turns] or [0]),
        **_branch_metrics(trajectories, num_turns=len(turns)),
    }


def outcome_shares(groups: Sequence[TrajectoryGroup]) -> dict[Outcome, float]:
    """Return the share of episodes for each outcome. Lost episodes are included."""
    outcomes = Counter(trajectory.outcome for group in groups for trajectory in group.trajectories)
    num_lost = sum(group.num_lost for group in groups)
    outcomes[Outcome.CLIENT_ERROR] = sum(group.num_client_errors for group in groups)
    outcomes[Outcome.REWARD_ERROR] = sum(group.num_unrewarded for group in groups)
    outcomes[Outcome.INFRASTRUCTURE_ERROR] = num_lost - outcomes[Outcome.CLIENT_ERROR] - outcomes[Outcome.REWARD_ERROR]
    return {outcome: outcomes[outcome] / outcomes.total() for outcome in Outcome}


def _refusal_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return two counts: requests that the gateway refused, and fields that it ignored."""
    refused, not_read = count_refusals(groups)
    return {
        "rollout/refused_requests": float(refused.total()),
        **{f"rollout/refused/{reason}": float(number) for reason, number in sorted(refused.items())},
        **{f"rollout/not_read/{field}": float(number) for field, number in sorted(not_read.items())},
    }


def count_refusals(groups: Sequence[TrajectoryGroup]) -> tuple[Counter[str], Counter[str]]:
    """Return how many requests were refused for each reason, and how many accepted requests contained each ignored
    field."""
    refused, not_read = Counter[str](), Counter[str]()
    for group in groups:
        refused.update(group.refused)
        not_read.update(group.not_read)
    return refused, not_read


def _policy_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the metrics of every other policy, keyed by name. All other metrics leave out policies that do not
    learn."""
    played: dict[str, list[Turn]] = {}
    for trajectory in trajectories:
        for turn in (*trajectory.turns, *trajectory.other_turns):
            if turn.policy is not None:
                played.setdefault(turn.policy, []).append(turn)
    metrics = {}
    for name, turns in sorted(played.items()):
        metrics |= {
            f"rollout/policies/{name}/turns": len(turns) / len(trajectories),
            f"rollout/policies/{name}/response_mean": fmean(turn.num_sampled_tokens for turn in turns),
            f"rollout/policies/{name}/computed": float(sum(turn.num_computed_tokens for turn in turns)),
            f"rollout/policies/{name}/truncated_turns": fmean(turn.stop_reason is StopReason.LENGTH for turn in turns),
        }
    return metrics


def _branch_metrics(trajectories: Sequence[Trajectory], *, num_turns: int) -> dict[str, float]:
    """Return counts of branches and breaks. Side requests are separate conversations. They are counted, but not as
    breaks."""
    reasons = Counter(reason_of(t.branch_reason) for one in trajectories for t in one.turns if t.branch_reason)
    breaks = {reason: count for reason, count in reasons.items() if reason is not BranchReason.SIDE_REQUEST}
    clients = Counter(
        (turn.client, reason_of(turn.branch_reason))
        for one in trajectories
        for turn in one.turns
        if turn.client is not None and turn.branch_reason and reason_of(turn.branch_reason) in breaks
    )
    return {
        "rollout/branches": 1 + sum(breaks.values()) / len(trajectories),
        "rollout/side_requests": reasons[BranchReason.SIDE_REQUEST] / len(trajectories),
        "rollout/break_fraction": sum(breaks.values()) / max(1, num_turns),
        **{f"rollout/breaks/{reason}": count / max(1, num_turns) for reason, count in sorted(breaks.items())},
        **{
            f"rollout/clients/{client}/breaks/{reason}": count / max(1, num_turns)
            for (client, reason), count in sorted(clients.items())
        },
        "rollout/tokens/played_again": float(sum(_num_played_again(one) for one in trajectories)),
    }


_CHANGED = (
    BranchReason.EDITED_HISTORY,
    BranchReason.DROPPED_TEXT,
    BranchReason.SYSTEM_CHANGED,
    BranchReason.TOOLS_CHANGED,
    BranchReason.SPLICE_REFUSED,
)
"""The reasons why an earlier conversation is rendered again."""


def _num_played_again(trajectory: Trajectory) -> int:
    """Return the number of earlier tokens that were rendered a second time because a request did not continue them."""
    again = 0
    for place, turn in enumerate(trajectory.turns):
        if turn.branch_reason is not None and reason_of(turn.branch_reason) in _CHANGED:
            before = (one.prompt_ids + one.token_ids for one in trajectory.turns[:place])
            shared, length = max(((common_prefix(turn.prompt_ids, ids), len(ids)) for ids in before), default=(0, 0))
            again += min(length, len(turn.prompt_ids)) - shared
    return again


def logprob_metrics(trajectories: Sequence[Trajectory], *, num_groups: int) -> dict[str, float]:
    """Return statistics of the sampled tokens' log-probabilities, with separate metrics for exact zeros. Return no
    metrics if no tokens are known."""
    logprobs = [value for t in trajectories for turn in t.turns for value in turn.sampled_logprobs]
    if not logprobs:
        return {}
    nonzero = [value for value in logprobs if value != 0.0]
    num_zero = len(logprobs) - len(nonzero)
    nonzero = nonzero or [0.0]
    return {
        "rollout/logprob/zero_count": float(num_zero),
        "rollout/logprob/zero_frac": num_zero / len(logprobs),
        "rollout/logprob/zero_per_group": num_zero / num_groups,
        "rollout/logprob/nz_mean": fmean(nonzero),
        "rollout/logprob/nz_std": pstdev(nonzero),
        "rollout/logprob/nz_min": min(nonzero),
        "rollout/logprob/nz_max": max(nonzero),
        # The mean of -log p over samples from p estimates the entropy of p.
        "rollout/logprob/entropy": -fmean(logprobs),
    }


def _group_metrics(groups: Sequence[TrajectoryGroup], advantages: Mapping[str, Sequence[float]]) -> dict[str, float]:
    silent = [group for group in groups if not _has_signal(group, advantages)]
    means = [fmean(group.rewards) for group in groups]
    return {
        "analysis/batch_valid_ratio": 1 - len(silent) / len(groups),
        "analysis/zero_adv_groups": float(len(silent)),
        "analysis/zero_adv_nonzero_reward": float(
            sum(any(reward != 0 for reward in group.rewards) for group in silent)
        ),
        "analysis/zero_adv_zero_reward": float(sum(all(reward == 0 for reward in group.rewards) for group in silent)),
        "analysis/reward_variance_across_groups": pstdev(means) ** 2,
        "analysis/mean_group_reward_spread": fmean(max(group.rewards) - min(group.rewards) for group in groups),
    }


def _silence_metrics(groups: Sequence[TrajectoryGroup], success_threshold: float) -> dict[str, float]:
    """Return the number of groups with equal rewards, separately for rewards that count as success, rewards of at most
    0, and rewards in between."""
    equal = [group.rewards[0] for group in groups if len(set(group.rewards)) == 1]
    right = sum(reward >= success_threshold for reward in equal)
    wrong = sum(reward <= 0 and reward < success_threshold for reward in equal)
    return {
        "analysis/equal_groups/all_right": float(right),
        "analysis/equal_groups/all_wrong": float(wrong),
        "analysis/equal_groups/all_between": float(len(equal) - right - wrong),
    }


def _staleness_metrics(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Return the age of episodes, which is the age of their oldest token, and the share of trained tokens at each age.
    Ages are in policy versions."""
    ages = [version - t.oldest_version for t in trajectories if t.oldest_version is not None] or [0]
    tokens: Counter[int] = Counter()
    for turn in (turn for t in trajectories for turn in t.turns if turn.is_trained):
        for sampled_by, count in turn.versions:
            tokens[version - sampled_by] += count
    return {
        "training/staleness_mean": fmean(ages),
        "training/staleness_max": float(max(ages)),
        **{f"training/staleness/{age}": count / tokens.total() for age, count in sorted(tokens.items())},
    }


def _time_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the durations of turns and episodes, and the parts of an episode's duration, in seconds."""
    turns = [turn.seconds for t in trajectories for turn in t.turns] or [0.0]
    episodes = [trajectory.seconds for trajectory in trajectories]
    policy = [sum(turn.seconds for turn in (*t.turns, *t.other_turns)) for t in trajectories]
    return {
        "timing_s/turn/p50": quantile(turns, 0.5),
        "timing_s/turn/p99": quantile(turns, 0.99),
        "timing_s/episode/mean": fmean(episodes),
        "timing_s/episode/max": max(episodes),
        "timing_s/episode/policy": fmean(policy),
        # The turns of one episode may overlap.
        "timing_s/episode/environment": fmean(max(0.0, all_ - own) for all_, own in zip(episodes, policy, strict=True)),
    }


def quantile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank quantile: the smallest value such that at least `share` of the values are less than or
    equal to it. There must be at least one value."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def kind_metrics(
    groups: Sequence[TrajectoryGroup], kind_of: Callable[[Task], str] | None, success_threshold: float
) -> dict[str, float]:
    """Return the metrics of a step for each kind of task, or no metrics if tasks have no kinds."""
    if kind_of is None:
        return {}
    kinds: dict[str, list[TrajectoryGroup]] = {}
    for group in groups:
        kinds.setdefault(kind_of(group.task), []).append(group)
    metrics = {}
    for kind, members in sorted(kinds.items()):
        rewards = [reward for group in members for reward in group.rewards]
        equal = sum(len(set(group.rewards)) == 1 for group in members)
        metrics |= {
            f"rollout/kind/{kind}/num_groups": float(len(members)),
            f"rollout/kind/{kind}/reward_mean": fmean(rewards),
            f"rollout/kind/{kind}/success": fmean(reward >= success_threshold for reward in rewards),
            f"rollout/kind/{kind}/equal_groups": equal / len(members),
        }
    return metrics


def batch_metrics(
    batch: TrainingBatch,
    groups: Sequence[TrajectoryGroup],
    *,
    num_computed: float,
    num_stale: int,
    num_lost: int = 0,
) -> dict[str, float]:
    """Return how many of the step's rollouts are trained on. `num_computed` is the number of tokens that the learner
    computed in one pass. `num_stale` is the number of groups that have been discarded so far because they were too old.
    `num_lost` is the number of the step's groups that were lost as a whole."""
    num_trajectories = sum(len(group.trajectories) for group in groups)
    trained, total = batch.num_trained_tokens, sum(len(segment.token_ids) for segment in batch.segments)
    distinct = count_nodes(sequence_ids(batch))
    return {
        "training/stale_groups_discarded": float(num_stale),
        "analysis/batch_completion_ratio": len(groups) / (len(groups) + num_lost),
        "training/num_groups": float(len(groups)),
        "training/num_trajectories": float(num_trajectories),
        "training/num_datums": float(len(batch.sequences)),
        "training/datums_per_trajectory": len(batch.sequences) / num_trajectories,
        "training/total_tokens": float(total),
        "training/distinct_tokens": float(distinct),
        "training/computed_per_distinct": num_computed / max(1, distinct),
        "training/trainable_token_positions": float(trained),
        "training/nontrainable_token_positions": float(total - trained),
        "training/trainable_token_ratio": trained / max(1, total),
    }


def _has_signal(group: TrajectoryGroup, advantages: Mapping[str, Sequence[float]]) -> bool:
    return any(any(advantages[trajectory.id]) for trajectory in group.trajectories)
