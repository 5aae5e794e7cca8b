"""Play a set of tasks once and sum up what the scorer says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from statistics import fmean, pstdev
from typing import Any, Self

from sparring.errors import ServiceError
from sparring.evaluation.agreement import Agreement, Disagreement, agreement
from sparring.evaluation.bounds import Bounds
from sparring.evaluation.independence import Independence
from sparring.evaluation.statistics import Interval, mean_interval, pass_at_k, pass_power_k
from sparring.rollouts import Collector, GroupPlan
from sparring.rollouts.metrics import logprob_metrics, outcome_shares, refusals_of, score_part_means
from sparring.types import Outcome, Sampling, Task, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Who says what counts as success."""

    scorer: str | None
    """As the recipe names it; None: the training reward judges itself."""
    independence: Independence
    success_threshold: float

    @property
    def caveat(self) -> str | None:
        """What a table must say of its numbers."""
        if self.scorer is None:
            return "no independent scorer is set (reward.scorer), so these are the training reward judging itself"
        if self.independence != "scorer":
            return f"the scorer {self.scorer} {self.independence}, so a mistake in that code shows in neither"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What one policy did on a set of tasks. Sequences hold one number a task, in the order of `task_ids`."""

    name: str
    label: str
    """Name and setting as they stand in the ids of the episodes: `held_out/LABEL@.../TASK/MEMBER.ATTEMPT`."""
    split: str
    policy_version: int | None
    """None: the policy is not one of the run's."""
    fingerprint: str
    """Content hash of the weights; of an endpoint or a script `kind:name`."""
    temperature: float | None
    """0 is greedy; None: nothing was sampled, since a script row."""
    group_size: int
    """Episodes that were planned a task."""
    judge: Judge
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
    agreement: Agreement
    """Of reward and scorer on these episodes."""
    seconds: float
    """Wall time of playing; of an evaluation that was resumed, of its last part."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """How many episodes of a task were lost, by task id; those of which none is left are here alone."""

    @property
    def num_lost(self) -> int:
        return sum(self.lost.values())

    @property
    def lost_share(self) -> float:
        """Of the episodes that were planned."""
        return self.num_lost / (self.num_lost + sum(self.samples))

    @property
    def outcomes(self) -> dict[Outcome, float]:
        """Shares of all episodes, lost ones among them, by how they ended. Empty in files of versions that did not keep them."""
        known = {name.rpartition("/outcome/")[2]: share for name, share in self.metrics.items() if "/outcome/" in name}
        return {outcome: known[outcome] for outcome in Outcome if outcome in known}

    @property
    def success_bounds(self) -> Bounds:
        """What success would be if every lost episode had been wrong, and if every one had been right."""
        return self._bounds(self.successes)

    @property
    def score_bounds(self) -> Bounds | None:
        """The same of the score. None where the training reward scores, which has no best value."""
        if self.judge.scorer is None:
            return None
        return self._bounds([score * n for score, n in zip(self.scores, self.samples, strict=True)])

    def _bounds(self, totals: Sequence[float]) -> Bounds:
        by_task = dict(zip(self.task_ids, totals, strict=True))
        return Bounds.of(by_task, dict(zip(self.task_ids, self.samples, strict=True)), self.lost)

    @property
    def rates(self) -> tuple[Fraction, ...]:
        """Success rate of each task."""
        return tuple(Fraction(c, n) for c, n in zip(self.successes, self.samples, strict=True))

    @property
    def setting(self) -> str:
        """How it was sampled, in a word or two."""
        if self.temperature is None:
            return "script"
        return "greedy" if self.temperature == 0 else f"T {self.temperature:g}"

    def passes(self) -> dict[int, tuple[float, float]]:
        """pass@k and pass^k by k, for every k up to the fewest episodes of a task, over the tasks."""
        return _passes(self.samples, self.successes)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "label": self.label,
            "split": self.split,
            "policy_version": self.policy_version,
            "fingerprint": self.fingerprint,
            "temperature": self.temperature,
            "group_size": self.group_size,
            "scorer": self.judge.scorer,
            "independence": self.judge.independence,
            "success_threshold": self.judge.success_threshold,
            "score": interval_json(self.score),
            "success": interval_json(self.success),
            "agreement": self.agreement.as_json(),
            "metrics": dict(self.metrics),
            "seconds": self.seconds,
            "lost": dict(self.lost),
            "bounds": {
                "success": asdict(self.success_bounds),
                "score": None if self.score_bounds is None else asdict(self.score_bounds),
            },
            "tasks": [
                {"id": i, "score": s, "successes": c, "samples": n, "reward": r, "completion": d, "turns": t}
                for i, s, c, n, r, d, t in zip(
                    self.task_ids, self.scores, self.successes, self.samples, self.rewards, self.completions, self.turns,
                    strict=True,
                )
            ],
        }  # fmt: skip

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What `as_json` wrote. Raises LookupError, TypeError or ValueError for anything else."""
        tasks = content["tasks"]

        def by_task(key: str) -> tuple[Any, ...]:
            return tuple(task[key] for task in tasks)

        return cls(
            name=content["name"],
            label=content["label"],
            split=content["split"],
            policy_version=content["policy_version"],
            fingerprint=content["fingerprint"],
            temperature=content["temperature"],
            group_size=content["group_size"],
            judge=Judge(
                scorer=content["scorer"],
                independence=content["independence"],
                success_threshold=content["success_threshold"],
            ),
            task_ids=by_task("id"),
            scores=by_task("score"),
            successes=by_task("successes"),
            samples=by_task("samples"),
            rewards=by_task("reward"),
            completions=by_task("completion"),
            turns=by_task("turns"),
            metrics=content["metrics"],
            score=Interval(**content["score"]),
            success=Interval(**content["success"]),
            agreement=_agreement(content["agreement"]),
            seconds=content["seconds"],
            lost=content.get("lost", {}),
        )


def _agreement(content: Mapping[str, Any]) -> Agreement:
    """What `Agreement.as_json` wrote."""
    derived = ("num", "share", "culprits", "disagreements")
    disagreements = (Disagreement(**{**one, "culprits": tuple(one["culprits"])}) for one in content["disagreements"])
    return Agreement(
        **{key: value for key, value in content.items() if key not in derived}, disagreements=tuple(disagreements)
    )


def interval_json(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Which policy is evaluated, and how it plays."""

    name: str
    label: str
    split: str
    policy_version: int | None
    fingerprint: str
    temperature: float | None
    group_size: int
    done: Mapping[str, Mapping[int, Trajectory]] = field(default_factory=dict)
    """By task and member: episodes that an interrupted evaluation left."""
    keep: Callable[[Trajectory], None] | None = None
    """As `GroupPlan.keep`."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Of stored episodes that are scored again: what was lost when they were played, by task id."""


async def evaluate(
    collector: Collector,
    tasks: Sequence[Task],
    row: Row,
    *,
    sampling: Sampling,
    judge: Judge,
    in_waves: bool,
    attempt: str,
    seconds: Callable[[], float],
    prefix: str,
    pass_k_values: Sequence[int] | None = None,
    kind_of: Callable[[Task], str] | None = None,
    on_group: Callable[[TrajectoryGroup], None] | None = None,
) -> tuple[Evaluation, list[TrajectoryGroup]]:
    """Play `group_size` episodes of each task. Seeds follow from split, task (its place and id) and member alone, so two
    policies meet the same draws, in whatever order they are played. Lost episodes are left out of every number and
    counted in `<prefix>/lost_rollouts`. `attempt` tells evaluations of the same label apart: the ledger wants
    every rollout under a name of its own.
    """
    began = seconds()
    plans = [
        GroupPlan(
            task=task, position=index, group_size=row.group_size, sampling=sampling, split=row.split,
            label=f"{row.label}@{attempt}", done=row.done.get(task.id, {}), keep=row.keep,
        )
        for index, task in enumerate(tasks)
    ]  # fmt: skip
    groups = await collector.play_all(plans, in_waves=in_waves, on_group=on_group)
    evaluation = summarize(
        groups, row, judge=judge, seconds=seconds() - began, prefix=prefix, pass_k_values=pass_k_values,
        kind_of=kind_of,
    )  # fmt: skip
    return evaluation, groups


def summarize(
    groups: Sequence[TrajectoryGroup],
    row: Row,
    *,
    judge: Judge,
    seconds: float,
    prefix: str,
    pass_k_values: Sequence[int] | None = None,
    kind_of: Callable[[Task], str] | None = None,
) -> Evaluation:
    """Numbers of played groups; a task all of whose episodes were lost is left out. Raises ServiceError with none left.

    `pass_k_values` are the k of pass@k and pass^k, None every one; a k above the fewest episodes of a task is not defined,
    and there is no metric of it.
    """
    known = [group for group in groups if group.trajectories]
    refused, not_read = refusals_of(groups)
    if not known:
        refusals = f" The gateway refused what their client sent: {', '.join(refused)}." if refused else ""
        raise ServiceError(
            f"every episode of the evaluation {row.name!r} was lost, so there is nothing to sum up; the "
            f"warnings above say what failed.{refusals}"
        )
    judged = [
        [t.score if t.score is not None else t.reward.total for t in g.trajectories if t.reward is not None]
        for g in known
    ]
    successes = [sum(value >= judge.success_threshold for value in values) for values in judged]
    samples = [len(values) for values in judged]
    everything = [t for g in known for t in g.trajectories]
    compared = agreement(everything, success_threshold=judge.success_threshold)
    rewards = [t.reward.total for t in everything if t.reward is not None]
    completions = [fmean(t.outcome is Outcome.FINISHED for t in g.trajectories) for g in known]
    turns = [fmean(len(t.turns) for t in g.trajectories) for g in known]
    scores = [fmean(values) for values in judged]
    rates = [c / n for c, n in zip(successes, samples, strict=True)]
    metrics = {
        f"{prefix}/score/mean": fmean(scores),
        f"{prefix}/reward/mean": fmean(rewards),
        f"{prefix}/reward/std": pstdev(rewards),
        f"{prefix}/reward/min": min(rewards),
        f"{prefix}/reward/max": max(rewards),
        f"{prefix}/reward/zero_frac": fmean(reward == 0 for reward in rewards),
        f"{prefix}/reward/num_prompts": float(len(known)),
        f"{prefix}/reward/rollouts_per_prompt": fmean(samples),
        f"{prefix}/reward/success_threshold": judge.success_threshold,
        f"{prefix}/reward/succeeded_rollouts": float(sum(successes)),
        f"{prefix}/reward/failed_rollouts": float(sum(samples) - sum(successes)),
        f"{prefix}/completion": fmean(completions),
        **_within_groups(known, prefix),
        f"{prefix}/turns/mean": fmean(turns),
        f"{prefix}/turns/min": float(min(len(t.turns) for t in everything)),
        f"{prefix}/turns/max": float(max(len(t.turns) for t in everything)),
        **{
            f"{prefix}/logprob/{name.rpartition('/')[2]}": value
            for name, value in logprob_metrics(everything, num_groups=len(known)).items()
        },
        **{f"{prefix}/outcome/{outcome}": share for outcome, share in outcome_shares(groups).items()},
        f"{prefix}/lost_rollouts": float(sum(g.num_lost for g in groups)),
        f"{prefix}/client_errors": float(sum(g.num_client_errors for g in groups)),
        f"{prefix}/unrewarded": float(sum(g.num_unrewarded for g in groups)),
        f"{prefix}/refused_requests": float(refused.total()),
        **{f"{prefix}/refused/{reason}": float(number) for reason, number in sorted(refused.items())},
        **{f"{prefix}/not_read/{field}": float(number) for field, number in sorted(not_read.items())},
        f"{prefix}/policy_timeouts": float(sum(t.outcome is Outcome.POLICY_TIMEOUT for t in everything)),
        **{f"{prefix}/agreement/{name}": value for name, value in compared.metrics().items()},
        **{f"{prefix}/score/parts/{name}": mean for name, mean in score_part_means(everything).items()},
    }
    if all(turn.token_ids or turn.usage is not None for t in everything for turn in t.turns):
        responses = [t.num_sampled_tokens for t in everything]
        metrics |= {
            f"{prefix}/tokens/response_mean": fmean(responses),
            f"{prefix}/tokens/response_std": pstdev(responses),
            f"{prefix}/tokens/response_min": float(min(responses)),
            f"{prefix}/tokens/response_max": float(max(responses)),
        }
    gaps = [t.reward.total - t.score for t in everything if t.reward is not None and t.score is not None]
    if gaps:
        metrics[f"{prefix}/reward_minus_score"] = fmean(gaps)
    if kind_of is not None:
        kinds: dict[str, list[float]] = {}
        for group, rate in zip(known, rates, strict=True):
            kinds.setdefault(kind_of(group.task), []).append(rate)
        metrics |= {f"{prefix}/kind/{kind}/success": fmean(of_kind) for kind, of_kind in sorted(kinds.items())}
    for k, (at_k, power_k) in _passes(samples, successes).items():
        if pass_k_values is None or k in pass_k_values:
            metrics |= {f"{prefix}/reward/pass_at_{k}": at_k, f"{prefix}/reward/pass_power_{k}": power_k}
    return Evaluation(
        name=row.name,
        label=row.label,
        split=row.split,
        policy_version=row.policy_version,
        fingerprint=row.fingerprint,
        temperature=row.temperature,
        group_size=row.group_size,
        judge=judge,
        task_ids=tuple(g.task.id for g in known),
        scores=tuple(scores),
        successes=tuple(successes),
        samples=tuple(samples),
        rewards=tuple(fmean(g.rewards) for g in known),
        completions=tuple(completions),
        turns=tuple(turns),
        metrics=metrics,
        score=mean_interval(scores),
        success=mean_interval(rates),
        agreement=compared,
        seconds=seconds,
        lost={g.task.id: g.num_lost for g in groups if g.num_lost},
    )


def _within_groups(groups: Sequence[TrajectoryGroup], prefix: str) -> dict[str, float]:
    """Lowest, mean, highest reward and standard deviation within a task's episodes, each the mean over tasks."""
    within = {"min": min, "mean": fmean, "max": max, "std": pstdev}
    return {
        f"{prefix}/reward/{name}_within_groups": fmean(measure(group.rewards) for group in groups)
        for name, measure in within.items()
    }


def _passes(samples: Sequence[int], successes: Sequence[int]) -> dict[int, tuple[float, float]]:
    pairs = list(zip(samples, successes, strict=True))
    return {
        k: (fmean(pass_at_k(n, c, k) for n, c in pairs), fmean(pass_power_k(n, c, k) for n, c in pairs))
        for k in range(1, min(samples) + 1)
    }
