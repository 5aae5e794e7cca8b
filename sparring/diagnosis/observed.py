"""What a run shows of itself: all that a rule of the diagnosis may look at."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import final

from sparring.config import Config
from sparring.detectors.evidence import Episode, latest
from sparring.findings import Finding
from sparring.history import Digest, History, StepRecord
from sparring.ledger.attempts import Attempts
from sparring.types import Json

LATE_STEPS = 5
"""Over which the present is taken: one step alone is noisy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How a run stands while nobody has ended it."""

    status: str
    seconds_since_last: float
    """Since it last wrote down a number or its status."""
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a run branched off, and what its parent was told."""

    parent: str
    step: int
    """The parent's checkpoint that it began from."""
    changes: Mapping[str, tuple[Json, Json]]
    """Settings that differ, by key path: the parent's value and the run's own."""
    files: Sequence[str] = ()
    """Files of the recipe that differ."""
    history: History
    """The parent's, all of it."""
    findings: Sequence[Finding] = ()
    """What the diagnosis says of the parent."""


@final
@dataclass(frozen=True, kw_only=True)
class Observed:
    """One run, up to now. Pure data: rules read nothing else."""

    config: Config
    history: History
    said: Sequence[Finding] = ()
    """What detectors said while it trained and say now, and then what rules of the diagnosis have said before this one."""
    attempts: Attempts = field(default_factory=Attempts)
    progress: Progress | None = None
    """None of a run that has ended."""
    lineage: Lineage | None = None
    template_problem: str | None = None
    """How the chat template contradicts itself, as the manifest has it."""

    @cached_property
    def trained(self) -> Sequence[StepRecord]:
        """The steps that trained."""
        return [one for one in self.history.steps if one.step > 0 and "rollout/reward/mean" in one.metrics]

    @cached_property
    def late(self) -> Sequence[Episode]:
        """Training episodes of the last steps."""
        return latest(self.history, LATE_STEPS)

    @property
    def late_steps(self) -> list[int]:
        """First and last of them."""
        steps = [one.step for one in self.trained][-LATE_STEPS:]
        return [steps[0], steps[-1]] if steps else []

    def series(self, name: str) -> list[float]:
        """A metric of the steps that trained, where it was measured."""
        return [one.metrics[name] for one in self.trained if one.metrics.get(name) is not None]

    def now(self, name: str, default: float = 0.0) -> float:
        """Mean of a metric over the last steps that have it."""
        values = self.series(name)[-LATE_STEPS:]
        return fmean(values) if values else default

    @cached_property
    def validations(self) -> Sequence[StepRecord]:
        """The steps after which the policy was validated, 0 among them."""
        return [one for one in self.history.steps if "val/reward/mean" in one.metrics]

    def succeeds(self, digest: Digest) -> bool:
        """Whether an episode is right: by its score, or by its reward where there is no scorer."""
        judged = digest.reward if digest.score is None else digest.score
        return judged >= self.history.success_threshold

    @cached_property
    def success(self) -> float:
        """Share of the late training episodes that are right."""
        return fmean(self.succeeds(one.digest) for one in self.late) if self.late else 0.0

    @cached_property
    def equal_groups(self) -> float:
        """Share of the late groups whose episodes said and did the same, word for word."""
        groups: dict[object, set[object]] = defaultdict(set)
        for one in self.late:
            groups[one.group].add((one.digest.said, one.digest.calls))
        return fmean(len(members) == 1 for members in groups.values()) if groups else 0.0

    @property
    def silent_groups_agree(self) -> bool:
        """Whether most groups without an advantage are such whose episodes earned the same, as they are with most methods."""
        kinds = ("all_right", "all_wrong", "all_between")
        equal = sum(self.now(f"analysis/equal_groups/{kind}") for kind in kinds)
        return equal >= 0.5 * self.now("analysis/zero_adv_groups")

    @property
    def is_solved(self) -> bool:
        """Whether hardly anything is left to learn: then what stands still need not move. What validation of the last steps
        contradicts is not solved: it is right of these tasks, or at this temperature, alone."""
        if self.success < SOLVED or not self.trained:
            return False
        latest_ones = [one.metrics for one in self.validations if one.step > self.trained[-1].step - LATE_STEPS]
        if not latest_ones:
            return True
        last = latest_ones[-1]
        right = last.get("val/score/mean", last["val/reward/mean"])
        error = math.sqrt(max(0.01, right * (1 - right)) / max(1.0, last.get("val/reward/num_prompts", 1.0)))
        return right + 2 * error >= SOLVED


SOLVED = 0.9
