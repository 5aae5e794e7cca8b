"""A rule for branched runs: whether the change that was made in the branch has worked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sparring.detectors.evidence import Estimate, value_of_offered
from sparring.diagnosis.course import JUDGE_AFTER, SURE, difference
from sparring.diagnosis.observed import LATE_STEPS, Lineage, Observed
from sparring.diagnosis.proposal import overrides
from sparring.findings import Finding, Severity
from sparring.run_folders.history import History
from sparring.types import Json

NO_CHANGE = ("schedule.", "run.", "tracking.")
"""Settings for the length of a run and where it is stored. They do not affect how it learns."""
MOVES = ("stall.", "signal.", "system.filtered")
"""Symptoms of a flat run. Noise can hide them, so they count as gone only when the score or the share of groups with
signal rises."""
SIGNAL = "analysis/batch_valid_ratio"


def evaluate_change(observed: Observed) -> Iterable[Finding]:
    """Report whether the change in a branched run worked.

    The finding states what was changed since the parent, and whether the symptom that caused the change is gone. It
    also compares the reward (or the score, if there is one) with the parent's at the same steps. Until the branch has
    run for the number of steps given in the parent's finding, the verdict is "too early". The finding is a warning if
    the change did not help, or if several settings were changed at once."""
    lineage = observed.lineage
    if lineage is None:
        return
    changes = {key: values for key, values in lineage.changes.items() if not key.startswith(NO_CHANGE)}
    if not changes and not lineage.files:
        return
    made = _describe_change(observed, lineage, changes)
    verdict = _reach_verdict(observed, made)
    yield Finding(
        rule="change.judged",
        severity=verdict.severity,
        symptom=verdict.symptom,
        evidence={**_evidence_of_change(observed, made), "verdict": verdict.name},
        change=verdict.change,
        confirm=f"After {made.needed} steps, the symptom is gone and the reward is not lower than the parent's at the same "
        "steps.",
        step=observed.history.last_step if observed.history.steps else lineage.step,
        confirm_after=made.needed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """The change of a branched run, and its effect up to now."""

    lineage: Lineage
    settings: Mapping[str, tuple[Json, Json]]
    """The settings that were changed and affect learning."""
    advised: Finding | None
    """The parent's finding that led to the change."""
    is_gone: bool
    """Whether the rule of `advised` finds nothing in this run."""
    gain: Estimate | None
    """The gain over the parent, or None if it cannot be measured."""

    @property
    def count(self) -> int:
        """The number of changes. All changed files count as one."""
        return len(self.settings) + bool(self.lineage.files)

    @property
    def is_one(self) -> bool:
        """Whether this is a single change, or only settings that one finding proposed."""
        advised, files = self.advised, self.lineage.files
        return self.count == 1 or (advised is not None and set(self.settings) <= set(advised.settings) and not files)

    @property
    def needed(self) -> int:
        """The number of steps after which the effect is visible."""
        return (self.advised.confirm_after if self.advised is not None else None) or JUDGE_AFTER

    @property
    def text(self) -> str:
        new_values = {key: new for key, (_, new) in self.settings.items()}
        return ", ".join([*overrides(new_values), *self.lineage.files])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    name: str
    symptom: str
    change: str
    severity: Severity = Severity.NOTE


def _describe_change(observed: Observed, lineage: Lineage, settings: Mapping[str, tuple[Json, Json]]) -> _Change:
    advised = _advised(lineage, settings)
    reward_changed = bool(lineage.files) or any(key.startswith("reward.") for key in settings)
    return _Change(
        lineage=lineage,
        settings=settings,
        advised=advised,
        is_gone=advised is None or all(one.rule != advised.rule for one in observed.findings),
        gain=_gain(observed, lineage, reward_changed=reward_changed),
    )


def _evidence_of_change(observed: Observed, made: _Change) -> dict[str, Json]:
    lineage, advised, gain = made.lineage, made.advised, made.gain
    evidence: dict[str, Json] = {
        "parent": lineage.parent,
        "from_step": lineage.step,
        "steps": len(observed.trained),
        "changes": {key: list(values) for key, values in made.settings.items()},
        "files": list(lineage.files),
        "made_for": None if advised is None else advised.rule,
        "symptom_is_gone": made.is_gone if advised is not None else None,
    }
    if gain is not None:
        evidence |= {"gain": round(gain.value, 4), "gain_error": round(gain.error, 4)}
    return evidence


def _reach_verdict(observed: Observed, made: _Change) -> _Verdict:
    lineage, advised, gain, num_steps = made.lineage, made.advised, made.gain, len(observed.trained)
    if not made.is_one:
        return _Verdict(
            name="several",
            symptom=f"{made.count} things were changed at once ({made.text}), so their effects cannot be separated.",
            change=f"Branch from {lineage.parent} again at step {lineage.step} with only one of them.",
            severity=Severity.WARNING,
        )
    if num_steps < made.needed:
        return _Verdict(
            name="too early",
            symptom=f"{made.text} was changed {num_steps} steps ago; the effect of the change is visible only after "
            f"{made.needed} steps.",
            change="Continue the training.",
        )
    if not made.is_gone or (gain is not None and (-gain).exceeds(SURE)):
        return _failed(made)
    if advised is not None and gain is not None and _has_not_moved(observed, lineage, advised, gain):
        return _Verdict(
            name="unclear",
            symptom=f"{made.text}: {advised.rule} is no longer found, but neither the score nor the groups with signal "
            "have risen.",
            change="Continue the training. If nothing changes, go back and change something else.",
        )
    return _worked(made)


def _failed(made: _Change) -> _Verdict:
    advised = made.advised
    return _Verdict(
        name="failed",
        symptom=f"{made.text} did not help: "
        + (
            f"{advised.rule} is still there."
            if advised is not None and not made.is_gone
            else "the run got worse than its parent."
        ),
        change=_other_change(made.lineage, advised),
        severity=Severity.WARNING,
    )


def _worked(made: _Change) -> _Verdict:
    effect = "the run is not worse than its parent" if made.advised is None else f"{made.advised.rule} is gone"
    gain = made.gain
    gained = f", and the run gained {gain.value:.2f}." if gain is not None and gain.exceeds(SURE) else "."
    return _Verdict(name="worked", symptom=f"{made.text} worked: {effect}{gained}", change="Keep it.")


def _has_not_moved(observed: Observed, lineage: Lineage, advised: Finding, gain: Estimate) -> bool:
    """Return True if the advice was to raise the score or the share of groups with signal, and neither has risen."""
    changes = (gain, _change(observed, lineage, SIGNAL))
    return advised.rule.startswith(MOVES) and not any(one is not None and one.exceeds(SURE) for one in changes)


def _other_change(lineage: Lineage, advised: Finding | None) -> str:
    """Return what to do after a change that failed: go back to the parent, and apply the proposal of its next
    finding."""
    other = next((one for one in lineage.findings if one.severity is not Severity.NOTE and one is not advised), None)
    return f"Go back to {lineage.parent} at step {lineage.step} and change something else." + (
        f" The next finding was {other.rule}: {other.change}" if other is not None else ""
    )


def _advised(lineage: Lineage, changes: Mapping[str, Any]) -> Finding | None:
    """Return the parent's finding that led to the change. It is the finding that proposed one of these settings. If
    there is none, and code or the reward was changed, it is the first finding that required a code change."""
    for one in lineage.findings:
        if set(one.settings) & set(changes):
            return one
    if lineage.files or any(key.startswith(("reward.", "environment.", "data.", "agent.")) for key in changes):
        return next((one for one in lineage.findings if one.severity is not Severity.NOTE and not one.settings), None)
    return None


def _gain(observed: Observed, lineage: Lineage, *, reward_changed: bool) -> Estimate | None:
    """Return the late mean minus that of the parent, at the same steps if the parent has them, otherwise at the
    parent's end. Return None without data."""
    name = "rollout/score/mean"
    if not observed.series(name) or not _values(lineage.history, name):
        if reward_changed:
            return None
        name = "rollout/reward/mean"
    return _change(observed, lineage, name)


def _change(observed: Observed, lineage: Lineage, name: str) -> Estimate | None:
    now = observed.series(name)[-LATE_STEPS:]
    last = observed.trained[-1].step if observed.trained else 0
    until = _values(lineage.history, name, until=last)
    before = until[-LATE_STEPS:]
    return difference(before, now) if min(len(now), len(before)) >= 2 else None


def _values(history: History, name: str, until: int | None = None) -> list[float]:
    steps = [one for one in history.steps if one.step > 0 and (until is None or one.step <= until)]
    values = (value_of_offered(one.metrics, name) for one in steps)
    return [one for one in values if one is not None]
