"""Play a set of tasks once and sum up what the scorer says."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from sparring.errors import ServiceError
from sparring.evaluation.statistics import Interval, bootstrap_mean, paired_difference, pass_at_k, pass_power_k
from sparring.rollouts import Collector, GroupPlan
from sparring.rollouts.metrics import score_part_means
from sparring.tracking import LocalTracker
from sparring.types import Outcome, Sampling, Task, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What one policy did on a set of tasks. Sequences hold one number a task, in the order of `task_ids`."""

    name: str
    policy_version: int | None
    """None: the policy is not one of the run's."""
    fingerprint: str
    """Content hash of the weights; of an endpoint or a script `kind:name`."""
    is_independent: bool
    """Whether a scorer that is not the reward judged; without one the scores are the rewards."""
    task_ids: tuple[str, ...]
    scores: tuple[float, ...]
    """Mean score of the task's episodes."""
    successes: tuple[int, ...]
    samples: tuple[int, ...]
    rewards: tuple[float, ...]
    completions: tuple[float, ...]
    """Share of episodes that finished by themselves, apart from being right."""
    turns: tuple[float, ...]
    metrics: Mapping[str, float]
    score: Interval
    success: Interval
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "policy_version": self.policy_version,
            "fingerprint": self.fingerprint,
            "independent_scorer": self.is_independent,
            "score": _interval_json(self.score),
            "success": _interval_json(self.success),
            "metrics": dict(self.metrics),
            "seconds": self.seconds,
            "tasks": [
                {"id": i, "score": s, "successes": c, "samples": n, "reward": r, "completion": d, "turns": t}
                for i, s, c, n, r, d, t in zip(
                    self.task_ids, self.scores, self.successes, self.samples, self.rewards, self.completions, self.turns,
                    strict=True,
                )
            ],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The paired difference of two evaluations on the same tasks."""

    before: str
    after: str
    difference: Interval
    num_fixed: int
    num_broken: int

    def as_json(self) -> dict[str, Any]:
        return {
            "before": self.before, "after": self.after, "difference": _interval_json(self.difference),
            "num_fixed": self.num_fixed, "num_broken": self.num_broken,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """Evaluations of several policies on the same held-out tasks and seeds, and how the last compares to the others."""

    evaluations: tuple[Evaluation, ...]
    comparisons: tuple[Comparison, ...]
    path: Path

    def as_json(self) -> dict[str, Any]:
        return {
            "format": 1,
            "evaluations": [evaluation.as_json() for evaluation in self.evaluations],
            "comparisons": [comparison.as_json() for comparison in self.comparisons],
        }

    def write(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Write the report, and what was played for it as `held_out` episodes of the run, under the report's number."""
        self.path.write_text(json.dumps(self.as_json(), indent=1) + "\n", "utf-8")
        tracker = LocalTracker(self.path.parent.parent)
        tracker.log_groups(int(self.path.stem.rpartition("-")[2]), groups, split="held_out")
        tracker.close()


def _interval_json(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


async def evaluate(
    collector: Collector,
    tasks: Sequence[Task],
    *,
    name: str,
    split: str,
    label: str,
    group_size: int,
    sampling: Sampling,
    success_threshold: float,
    pass_k_values: Sequence[int],
    in_waves: bool,
    version: int | None,
    fingerprint: str,
    has_scorer: bool,
    seconds: Callable[[], float],
    prefix: str,
    kind_of: Callable[[Task], str] | None = None,
    on_group: Callable[[TrajectoryGroup], None] | None = None,
) -> tuple[Evaluation, list[TrajectoryGroup]]:
    """Play `group_size` episodes of each task. Seeds depend on split, task and member only, so two policies meet the
    same draws. Episodes lost to infrastructure are left out of every number and counted in `<prefix>/lost_rollouts`.
    """
    began = seconds()
    plans = [
        GroupPlan(task=task, position=index, group_size=group_size, sampling=sampling, split=split, label=label)
        for index, task in enumerate(tasks)
    ]
    groups = await collector.play_all(plans, in_waves=in_waves, on_group=on_group)
    return (
        summarize(
            groups, name=name, success_threshold=success_threshold, pass_k_values=pass_k_values, version=version,
            fingerprint=fingerprint, has_scorer=has_scorer, seconds=seconds() - began, prefix=prefix,
            kind_of=kind_of,
        ),
        groups,
    )  # fmt: skip


def summarize(
    groups: Sequence[TrajectoryGroup],
    *,
    name: str,
    success_threshold: float,
    pass_k_values: Sequence[int],
    version: int | None,
    fingerprint: str,
    has_scorer: bool,
    seconds: float,
    prefix: str,
    kind_of: Callable[[Task], str] | None = None,
) -> Evaluation:
    """Numbers of played groups; a task all of whose episodes were lost is left out. Raises ServiceError with none left."""
    played = [group for group in groups if group.trajectories]
    if not played:
        raise ServiceError(
            f"every episode of the evaluation {name!r} was lost to infrastructure, so there is nothing to sum up; the warnings "
            "above say what failed."
        )
    judged = [
        [t.score if t.score is not None else t.reward.total for t in g.trajectories if t.reward is not None]
        for g in played
    ]
    successes = [sum(value >= success_threshold for value in values) for values in judged]
    samples = [len(values) for values in judged]
    everything = [t for g in played for t in g.trajectories]
    rewards = [t.reward.total for t in everything if t.reward is not None]
    completions = [fmean(t.outcome is Outcome.FINISHED for t in g.trajectories) for g in played]
    turns = [fmean(len(t.turns) for t in g.trajectories) for g in played]
    scores = [fmean(values) for values in judged]
    rates = [c / n for c, n in zip(successes, samples, strict=True)]
    metrics = {
        f"{prefix}/score/mean": fmean(scores),
        f"{prefix}/reward/mean": fmean(rewards),
        f"{prefix}/reward/std": pstdev(rewards),
        f"{prefix}/reward/min": min(rewards),
        f"{prefix}/reward/max": max(rewards),
        f"{prefix}/reward/zero_frac": fmean(reward == 0 for reward in rewards),
        f"{prefix}/reward/num_prompts": float(len(played)),
        f"{prefix}/reward/rollouts_per_prompt": fmean(samples),
        f"{prefix}/reward/success_threshold": success_threshold,
        f"{prefix}/reward/succeeded_rollouts": float(sum(successes)),
        f"{prefix}/reward/failed_rollouts": float(sum(samples) - sum(successes)),
        f"{prefix}/completion": fmean(completions),
        f"{prefix}/turns/mean": fmean(turns),
        f"{prefix}/lost_rollouts": float(sum(g.num_lost for g in groups)),
        **{f"{prefix}/score/parts/{name}": mean for name, mean in score_part_means(everything).items()},
    }
    if all(turn.token_ids or turn.usage is not None for t in everything for turn in t.turns):
        metrics[f"{prefix}/tokens/response_mean"] = fmean(t.num_sampled_tokens for t in everything)
    for k in pass_k_values:
        if k <= min(samples):
            pairs = list(zip(samples, successes, strict=True))
            metrics[f"{prefix}/reward/pass_at_{k}"] = fmean(pass_at_k(n, c, k) for n, c in pairs)
            metrics[f"{prefix}/reward/pass_power_{k}"] = fmean(pass_power_k(n, c, k) for n, c in pairs)
    if kind_of is not None:
        kinds: dict[str, list[float]] = {}
        for group, rate in zip(played, rates, strict=True):
            kinds.setdefault(kind_of(group.task), []).append(rate)
        metrics |= {f"{prefix}/kind/{kind}/success": fmean(of_kind) for kind, of_kind in sorted(kinds.items())}
    rng = random.Random(0)
    return Evaluation(
        name=name,
        policy_version=version,
        fingerprint=fingerprint,
        is_independent=has_scorer,
        task_ids=tuple(g.task.id for g in played),
        scores=tuple(scores),
        successes=tuple(successes),
        samples=tuple(samples),
        rewards=tuple(fmean(g.rewards) for g in played),
        completions=tuple(completions),
        turns=tuple(turns),
        metrics=metrics,
        score=bootstrap_mean(scores, rng=rng),
        success=bootstrap_mean(rates, rng=rng),
        seconds=seconds,
    )


def compare(before: Evaluation, after: Evaluation) -> Comparison:
    """Paired by task; tasks that only one of them has are left out. Raises ValueError when they share none."""
    first = dict(zip(before.task_ids, _rates(before), strict=True))
    second = dict(zip(after.task_ids, _rates(after), strict=True))
    shared = [task_id for task_id in before.task_ids if task_id in second]
    if not shared:
        raise ValueError(f"{before.name!r} and {after.name!r} have no task in common, so they cannot be compared")
    return Comparison(
        before=before.name,
        after=after.name,
        difference=paired_difference([first[i] for i in shared], [second[i] for i in shared], rng=random.Random(0)),
        num_fixed=sum(second[i] > first[i] for i in shared),
        num_broken=sum(second[i] < first[i] for i in shared),
    )


def _rates(evaluation: Evaluation) -> list[float]:
    return [c / n for c, n in zip(evaluation.successes, evaluation.samples, strict=True)]
