"""The evaluation of a policy. This module runs the episodes of a set of tasks and summarizes their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from statistics import fmean
from typing import Any, Self

from sparring.config import PLACE_KEYS
from sparring.errors import DataError, ServiceError
from sparring.evaluation.agreement import Agreement, Disagreement
from sparring.evaluation.bounds import Bounds
from sparring.evaluation.independence import Independence
from sparring.evaluation.metrics import GradedGroups, passes
from sparring.evaluation.statistics import Interval, mean_interval
from sparring.pages.html import table
from sparring.rollouts import Collector, GroupPlan, MainPolicy
from sparring.rollouts.metrics import count_refusals
from sparring.rollouts.plan import order_for_sharing
from sparring.types import Json, Outcome, Sampling, Task, Trajectory, TrajectoryGroup

BEARING_SECTIONS = frozenset({"model", "data", "environment", "agent", "policies", "reward", "sampling", "rollout"})
"""The sections of a recipe whose settings affect what happens in an episode."""
NOT_BEARING = PLACE_KEYS | {"sampling.temperature", "rollout.rollout_max_concurrency"}
"""The settings of those sections that affect only where and how fast episodes run, and the temperature, which
evaluations set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessCriterion:
    """The criterion for success, and its independence from the reward."""

    scorer: str | None
    """The scorer as named in the recipe, or None if the training reward is also the measure of success."""
    independence: Independence
    success_threshold: float

    @property
    def caveat(self) -> str | None:
        """The caveat that a table of these numbers must show, or None if there is none."""
        if self.scorer is None:
            return "no independent scorer is set (reward.scorer), so the training reward grades itself here"
        if self.independence != "scorer":
            return f"the scorer {self.scorer} {self.independence}, so a mistake in that code shows in neither"
        return None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Evaluation:
    """The results of one policy on a set of tasks. Sequences contain one number per task, in the order of
    `task_ids`."""

    name: str
    label: str
    """The name and setting as in the ids of the episodes: `held_out/LABEL@.../TASK/MEMBER.ATTEMPT`."""
    split: str
    policy_version: int | None
    """The version of the policy's weights, or None if the policy does not belong to the run."""
    fingerprint: str
    """The content hash of the weights, or `kind:name` for an endpoint or a script."""
    temperature: float | None
    """The sampling temperature. 0 is greedy; None is a script, which does not sample."""
    group_size: int
    """The number of episodes planned for each task."""
    criterion: SuccessCriterion
    task_ids: tuple[str, ...]
    scores: tuple[float, ...]
    """The mean score of the task's episodes."""
    successes: tuple[int, ...]
    samples: tuple[int, ...]
    rewards: tuple[float, ...]
    completions: tuple[float, ...]
    """The share of each task's episodes that finished by themselves, whether correct or incorrect."""
    turns: tuple[float, ...]
    metrics: Mapping[str, float]
    score: Interval
    success: Interval
    agreement: Agreement
    """The agreement of reward and scorer on these episodes."""
    seconds: float
    """The wall time of the episodes, and of those that were run together with them, in seconds. For a resumed evaluation, this
    is the time of its last part."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """The numbers of lost episodes by task id. Tasks without any remaining episode appear only here."""
    timed_out: Mapping[str, int] = field(default_factory=dict)
    """The numbers of episodes that did not finish in time and count as wrong, by task id. Empty in files of versions
    that did not store them."""
    overrides: Mapping[str, Json] = field(default_factory=dict)
    """The settings that differ from the run's recipe, by key, such as `{"environment.max_turns": 3}`."""
    is_random_control: bool = False
    """Whether the policy is a run of the same recipe that was trained with random rewards."""

    def __repr__(self) -> str:
        """Return the name and the main numbers. `as_json` returns everything."""
        success, score = (f"{one.mean:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in (self.success, self.score))
        tasks = f"{len(self.task_ids)} task{'' if len(self.task_ids) == 1 else 's'}"
        return f"<Evaluation {self.name} ({self.setting}): success {success}, score {score}, {tasks}>"

    def _repr_html_(self) -> str:
        """Return the table of this evaluation as markup, which notebooks show."""
        from sparring.evaluation.tables import result_table  # tables of several evaluations import this module

        return table(*result_table([self], title=self.split))

    @property
    def num_lost(self) -> int:
        """The number of lost episodes over all tasks."""
        return sum(self.lost.values())

    @property
    def lost_share(self) -> float:
        """The share of the planned episodes that were lost."""
        return self.num_lost / (self.num_lost + sum(self.samples))

    @property
    def outcomes(self) -> dict[Outcome, float]:
        """The shares of all episodes, including lost ones, keyed by outcome. It is empty in files from versions that
        did not store the outcomes."""
        known = {name.rpartition("/outcome/")[2]: share for name, share in self.metrics.items() if "/outcome/" in name}
        return {outcome: known[outcome] for outcome in Outcome if outcome in known}

    @property
    def success_bounds(self) -> Bounds:
        """The success rate if every lost episode had been incorrect, and if every lost episode had been correct."""
        return self._bounds(self.successes)

    @property
    def score_bounds(self) -> Bounds | None:
        """The bounds of the score in the same two cases. None if the training reward is used as the score, because a
        reward has no fixed maximum."""
        if self.criterion.scorer is None:
            return None
        return self._bounds([score * n for score, n in zip(self.scores, self.samples, strict=True)])

    def _bounds(self, totals: Sequence[float]) -> Bounds:
        by_task = dict(zip(self.task_ids, totals, strict=True))
        return Bounds.of(by_task, dict(zip(self.task_ids, self.samples, strict=True)), self.lost)

    @property
    def rates(self) -> tuple[Fraction, ...]:
        """Return the success rate of each task."""
        return tuple(Fraction(c, n) for c, n in zip(self.successes, self.samples, strict=True))

    @property
    def plays_with(self) -> dict[str, Json]:
        """The overrides that affect what happens in an episode and do not appear in another field."""
        return {
            key: value
            for key, value in self.overrides.items()
            if key.partition(".")[0] in BEARING_SECTIONS and key not in NOT_BEARING
        }

    @property
    def differs_with(self) -> dict[str, Json]:
        """The overrides that affect what happens in an episode, or whether it counts as a success."""
        threshold = "evaluation.success_threshold"
        graded = {threshold: self.overrides[threshold]} if threshold in self.overrides else {}
        return self.plays_with | graded

    @property
    def setting(self) -> str:
        """A short name for the sampling settings: a script, greedy, or the temperature."""
        if self.temperature is None:
            return "script"
        return "greedy" if self.temperature == 0 else f"T {self.temperature:g}"

    def passes(self) -> dict[int, tuple[float, float]]:
        """Return pass@k and pass^k over the tasks, keyed by k, for every k up to the smallest number of episodes per
        task."""
        return passes(self.samples, self.successes)

    def as_json(self) -> dict[str, Any]:
        """Return the evaluation as the JSON data that `from_json` reads."""
        return {
            "name": self.name,
            "label": self.label,
            "split": self.split,
            "policy_version": self.policy_version,
            "fingerprint": self.fingerprint,
            "temperature": self.temperature,
            "group_size": self.group_size,
            "scorer": self.criterion.scorer,
            "independence": self.criterion.independence,
            "success_threshold": self.criterion.success_threshold,
            "score": interval_json(self.score),
            "success": interval_json(self.success),
            "agreement": self.agreement.as_json(),
            "metrics": dict(self.metrics),
            "seconds": self.seconds,
            "lost": dict(self.lost),
            "timed_out": dict(self.timed_out),
            "overrides": dict(self.overrides),
            "is_random_control": self.is_random_control,
            "bounds": {
                "success": asdict(self.success_bounds),
                "score": None if self.score_bounds is None else asdict(self.score_bounds),
            },
            "tasks": self._tasks_as_json(),
        }

    def _tasks_as_json(self) -> list[dict[str, Any]]:
        return [
            {"id": i, "score": s, "successes": c, "samples": n, "reward": r, "completion": d, "turns": t}
            for i, s, c, n, r, d, t in zip(
                self.task_ids,
                self.scores,
                self.successes,
                self.samples,
                self.rewards,
                self.completions,
                self.turns,
                strict=True,
            )
        ]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read the data that `as_json` wrote. Raises LookupError, TypeError or ValueError for anything else."""
        tasks = content["tasks"]
        if shared := _shared([task["id"] for task in tasks]):
            raise ValueError(f"several tasks are named {shared[0]!r}")

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
            criterion=SuccessCriterion(
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
            timed_out=content.get("timed_out", {}),
            overrides=content.get("overrides", {}),
            is_random_control=content.get("is_random_control", False),
        )


def _agreement(content: Mapping[str, Any]) -> Agreement:
    """Read the data that `Agreement.as_json` wrote."""
    derived = ("num", "share", "culprits", "disagreements")
    disagreements = (Disagreement(**{**one, "culprits": tuple(one["culprits"])}) for one in content["disagreements"])
    return Agreement(
        **{key: value for key, value in content.items() if key not in derived}, disagreements=tuple(disagreements)
    )


def interval_json(interval: Interval) -> dict[str, float]:
    """Return an interval as JSON data."""
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The policy that is evaluated, and the settings of its episodes."""

    name: str
    label: str
    split: str
    policy_version: int | None
    fingerprint: str
    temperature: float | None
    group_size: int
    done: Mapping[str, Mapping[int, Trajectory]] = field(default_factory=dict)
    """The episodes that an interrupted evaluation kept, by task and member."""
    keep: Callable[[Trajectory], None] | None = None
    """The callback for `GroupPlan.keep`."""
    policy: MainPolicy | None = None
    """The policy for `GroupPlan.policy`."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """The numbers of lost episodes by task id, if stored episodes are scored again."""
    overrides: Mapping[str, Json] = field(default_factory=dict)
    """The overrides for `Evaluation.overrides`."""
    is_random_control: bool = False


def refuse_shared_ids(tasks: Sequence[Task], split: str) -> None:
    """Raise DataError if tasks share an id, because the id identifies a task's episodes, seeds and paired
    differences."""
    if shared := _shared([task.id for task in tasks]):
        more = f" and {len(shared) - 1} more ids" if len(shared) > 1 else ""
        raise DataError(
            f"several tasks of {split} have the id {shared[0]!r}{more}, so their episodes could not be distinguished; "
            "give every task a unique id. To run a task more often, raise evaluation.eval_group_size."
        )


def _shared(ids: Sequence[str]) -> list[str]:
    return [one for one, num in Counter(ids).items() if num > 1]


async def evaluate(
    collector: Collector,
    tasks: Sequence[Task],
    rows: Sequence[tuple[Row, Sampling]],
    *,
    criterion: SuccessCriterion,
    in_waves: bool,
    attempt: str,
    seconds: Callable[[], float],
    prefix: str,
    pass_k_values: Sequence[int] | None = None,
    kind_of: Callable[[Task], str] | None = None,
    on_group: Callable[[TrajectoryGroup], None] | None = None,
) -> list[tuple[Evaluation, list[TrajectoryGroup]]]:
    """Run `group_size` episodes of each task for each row, and return the summary and the groups of each row.

    Several rows are one policy at different temperatures. The episodes of a task start at the same time, so that the engine
    computes what they have in common once, unless this needs many more waves.

    Seeds depend only on the split, the task (its position and id) and the member. Different policies therefore get the
    same random draws, regardless of the order in which they are evaluated. Lost episodes are excluded from all metrics
    and counted in `<prefix>/lost_rollouts`. `attempt` distinguishes evaluations that have the same label, because the
    ledger requires a unique name for every rollout. Raises ServiceError if every episode was lost.
    """
    for row, _ in rows:
        refuse_shared_ids(tasks, row.split)
    began = seconds()
    plans = [
        [
            GroupPlan(
                task=task,
                position=index,
                group_size=row.group_size,
                sampling=sampling,
                split=row.split,
                label=f"{row.label}@{attempt}",
                policy=row.policy,
                done=row.done.get(task.id, {}),
                keep=row.keep,
            )
            for index, task in enumerate(tasks)
        ]
        for row, sampling in rows
    ]
    ordered = order_for_sharing(plans, collector.max_concurrency if in_waves else None)
    groups = await collector.play_all(ordered, in_waves=in_waves, on_group=on_group)
    duration = seconds() - began
    found = {id(plan): group for plan, group in zip(ordered, groups, strict=True)}
    by_row = [[found[id(plan)] for plan in of_row] for of_row in plans]
    return [
        (
            summarize(
                of_row,
                row,
                criterion=criterion,
                seconds=duration,
                prefix=prefix,
                pass_k_values=pass_k_values,
                kind_of=kind_of,
            ),
            of_row,
        )
        for (row, _), of_row in zip(rows, by_row, strict=True)
    ]


def summarize(
    groups: Sequence[TrajectoryGroup],
    row: Row,
    *,
    criterion: SuccessCriterion,
    seconds: float,
    prefix: str,
    pass_k_values: Sequence[int] | None = None,
    kind_of: Callable[[Task], str] | None = None,
) -> Evaluation:
    """Return the results of finished groups. Tasks whose episodes were all lost are left out.

    `pass_k_values` are the values of k for pass@k and pass^k. By default, these are all values up to the smallest
    number of episodes per task. A larger k is not defined and has no metric. Raises ServiceError if every episode was
    lost.
    """
    graded = GradedGroups(groups, criterion.success_threshold)
    if not graded.known:
        refused, _ = count_refusals(groups)
        refusals = f" The gateway refused requests of their client: {', '.join(refused)}." if refused else ""
        raise ServiceError(
            f"every episode of the evaluation {row.name!r} was lost, so there is no result; the warnings above state "
            f"the causes.{refusals}"
        )
    return Evaluation(
        name=row.name,
        label=row.label,
        split=row.split,
        policy_version=row.policy_version,
        fingerprint=row.fingerprint,
        temperature=row.temperature,
        group_size=row.group_size,
        criterion=criterion,
        task_ids=tuple(group.task.id for group in graded.known),
        scores=tuple(graded.scores),
        successes=tuple(graded.successes),
        samples=tuple(graded.samples),
        rewards=tuple(fmean(group.rewards) for group in graded.known),
        completions=tuple(graded.completions),
        turns=tuple(graded.turns),
        metrics=graded.metrics(prefix, pass_k_values=pass_k_values, kind_of=kind_of),
        score=mean_interval(graded.scores),
        success=mean_interval(graded.rates),
        agreement=graded.agreement,
        seconds=seconds,
        lost={g.task.id: g.num_lost for g in groups if g.num_lost},
        timed_out={g.task.id: num for g, num in zip(graded.known, graded.timed_out, strict=True) if num},
        overrides=row.overrides,
        is_random_control=row.is_random_control,
    )
