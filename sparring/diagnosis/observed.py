"""The observations of a run that the rules of the diagnosis may read, and the type of such a rule."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import TypeAlias, final

from sparring.config import Config
from sparring.detectors.evidence import OFFERED, Episode, latest, value_of_offered
from sparring.findings import Finding, Rule
from sparring.ledger.attempts import Attempts
from sparring.run_folders.history import Digest, History, StepRecord
from sparring.types import Json

LATE_STEPS = 5
"""The number of last steps that count as the present, because a single step is noisy."""
SOLVED = 0.9
"""The success rate from which a run counts as solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a run that has not ended."""

    status: str
    seconds_since_last: float
    """The seconds since the run last wrote a metric or its status."""
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The run from which this run was branched, and the findings about it."""

    parent: str
    step: int
    """The checkpoint of the parent from which the run started."""
    changes: Mapping[str, tuple[Json, Json]]
    """The settings that differ, by key path: the parent's value and the run's own value."""
    files: Sequence[str] = ()
    """The files of the recipe that differ."""
    history: History
    """The complete history of the parent."""
    findings: Sequence[Finding] = ()
    """The diagnosis findings about the parent."""


@final
@dataclass(frozen=True, kw_only=True)
class Observed:
    """The observations of one run up to now. Rules read nothing else."""

    config: Config
    history: History
    detected: Sequence[Finding] = ()
    """The detectors' findings, both from training and from now."""
    diagnosed: Sequence[Finding] = ()
    """The findings of the diagnosis rules that ran earlier."""
    attempts: Attempts = field(default_factory=Attempts)
    progress: Progress | None = None
    """The progress of the run, or None if the run has ended."""
    lineage: Lineage | None = None
    template_problem: str | None = None
    """The contradiction in the chat template, as the manifest states it. None if there is no contradiction."""

    @property
    def findings(self) -> list[Finding]:
        return [*self.detected, *self.diagnosed]

    @cached_property
    def trained(self) -> Sequence[StepRecord]:
        """The steps in which the policy was trained."""
        return [one for one in self.history.steps if one.step > 0 and "rollout/reward/mean" in one.metrics]

    @cached_property
    def late(self) -> Sequence[Episode]:
        """The training episodes of the last steps."""
        return latest(self.history, LATE_STEPS)

    @property
    def late_steps(self) -> list[int]:
        """The first and the last late step."""
        steps = [one.step for one in self.trained][-LATE_STEPS:]
        return [steps[0], steps[-1]] if steps else []

    def series(self, name: str) -> list[float]:
        """Return the values of a metric at the training steps that have it. If tasks are selected, the means of reward and
        score are those of the offered tasks."""
        values = (value_of_offered(one.metrics, name) for one in self.trained)
        return [one for one in values if one is not None]

    def now(self, name: str, default: float = 0.0) -> float:
        """Return the mean of a metric over the last steps that have it."""
        values = self.series(name)[-LATE_STEPS:]
        return fmean(values) if values else default

    @cached_property
    def validations(self) -> Sequence[StepRecord]:
        """The steps after which the policy was validated, including step 0."""
        return [one for one in self.history.steps if "val/reward/mean" in one.metrics]

    def succeeds(self, digest: Digest) -> bool:
        """Return whether an episode is correct according to its score, or according to its reward if there is no
        scorer."""
        value = digest.reward if digest.score is None else digest.score
        return value >= self.history.success_threshold

    @cached_property
    def success(self) -> float:
        """The share of the late training episodes that are correct."""
        return fmean(self.succeeds(one.digest) for one in self.late) if self.late else 0.0

    @property
    def _success_of_offered(self) -> float:
        """The share of the late training episodes that are correct, or the mean score of the offered tasks: a selection
        leaves out what is solved."""
        name = "rollout/score/mean"
        is_selected = any(OFFERED[name] in one.metrics for one in self.trained[-LATE_STEPS:])
        return self.now(name) if is_selected else self.success

    @cached_property
    def equal_groups(self) -> float:
        """The share of the late groups whose episodes have exactly the same messages and calls."""
        groups: dict[object, set[object]] = defaultdict(set)
        for one in self.late:
            groups[one.group].add((one.digest.texts, one.digest.calls))
        return fmean(len(members) == 1 for members in groups.values()) if groups else 0.0

    @property
    def silent_groups_agree(self) -> bool:
        """Whether most groups without an advantage have equal rewards. With most advantage methods, this is the usual
        cause."""
        kinds = ("all_right", "all_wrong", "all_between")
        equal = sum(self.now(f"analysis/equal_groups/{kind}") for kind in kinds)
        return equal >= 0.5 * self.now("analysis/zero_adv_groups")

    @property
    def is_solved(self) -> bool:
        """Whether there is hardly anything left to learn, so that a flat curve is not a problem.

        A run is not solved if the validation of the last steps contradicts it. The policy then succeeds only on the
        training tasks, or only at the training temperature.
        """
        if not self.trained or self._success_of_offered < SOLVED:
            return False
        latest_ones = [one.metrics for one in self.validations if one.step > self.trained[-1].step - LATE_STEPS]
        if not latest_ones:
            return True
        last = latest_ones[-1]
        right = last.get("val/score/mean", last["val/reward/mean"])
        error = math.sqrt(max(0.01, right * (1 - right)) / max(1.0, last.get("val/reward/num_prompts", 1.0)))
        return right + 2 * error >= SOLVED


Symptom: TypeAlias = Rule[Observed, Iterable[Finding]]
"""A rule of the diagnosis."""
