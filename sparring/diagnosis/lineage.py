"""A rule for branched runs: whether the change that was made in the branch has worked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparring.detectors.evidence import Estimate
from sparring.diagnosis.course import JUDGE_AFTER, SURE, difference
from sparring.diagnosis.observed import LATE_STEPS, Lineage, Observed
from sparring.diagnosis.proposal import overrides
from sparring.findings import Finding, Severity
from sparring.run_folders.history import History
from sparring.types import Json

NO_CHANGE = ("schedule.", "run.", "tracking.")
"""Settings for the length of a run and where it is stored. They do not affect how it learns."""
MOVES = ("stall.", "signal.", "system.filtered")
"""Symptoms of a flat run. Noise can hide them, so they count as gone only when something rises."""
SIGNAL = "analysis/batch_valid_ratio"


def evaluate_change(observed: Observed) -> Iterable[Finding]:
    """Report whether the change in a branched run worked.

    The finding states what was changed since the parent, whether the symptom that caused the change is gone, and
    whether the reward (or the score, if there is one) is better than the parent's at the same steps. Until the branch
    has run for the number of steps given in the parent's finding, the verdict is "too early". The finding is a warning
    if the change did not help, or if several settings were changed at once."""
    lineage = observed.lineage
    if lineage is None:
        return
    changes = {key: values for key, values in lineage.changes.items() if not key.startswith(NO_CHANGE)}
    if not changes and not lineage.files:
        return
    advised = _advised(lineage, changes)
    num_changes = len(changes) + bool(lineage.files)
    is_one = num_changes == 1 or (advised is not None and set(changes) <= set(advised.settings) and not lineage.files)
    needed = (advised.confirm_after if advised is not None else None) or JUDGE_AFTER
    num_steps = len(observed.trained)
    is_gone = advised is None or all(one.rule != advised.rule for one in observed.findings)
    gain = _gain(
        observed, lineage, reward_changed=any(key.startswith("reward.") for key in changes) or bool(lineage.files)
    )
    evidence: dict[str, Json] = {
        "parent": lineage.parent,
        "from_step": lineage.step,
        "steps": num_steps,
        "changes": {key: list(values) for key, values in changes.items()},
        "files": list(lineage.files),
        "made_for": None if advised is None else advised.rule,
        "symptom_is_gone": is_gone if advised is not None else None,
    }
    if gain is not None:
        evidence |= {"gain": round(gain.value, 4), "gain_error": round(gain.error, 4)}
    what = ", ".join([*overrides({key: new for key, (_, new) in changes.items()}), *lineage.files])
    severity, symptom, change = Severity.NOTE, "", "Keep it."
    if not is_one:
        severity, evidence["verdict"] = Severity.WARNING, "several"
        symptom = f"{num_changes} things were changed at once ({what}), so their effects cannot be separated."
        change = f"Branch from {lineage.parent} again at step {lineage.step} with only one of them."
    elif num_steps < needed:
        evidence["verdict"] = "too early"
        symptom = (
            f"{what} was changed {num_steps} steps ago; the effect of the change is visible only after {needed} steps."
        )
        change = "Continue the training."
    elif not is_gone or (gain is not None and (-gain).exceeds(SURE)):
        severity, evidence["verdict"] = Severity.WARNING, "failed"
        symptom = f"{what} did not help: " + (
            f"{advised.rule} is still there."
            if advised is not None and not is_gone
            else "the run got worse than its parent."
        )
        change = _other_change(lineage, advised)
    elif advised is not None and gain is not None and _has_not_moved(observed, lineage, advised, gain):
        evidence["verdict"] = "unclear"
        symptom = (
            f"{what}: {advised.rule} is no longer found, but neither the score nor the groups with signal have risen."
        )
        change = "Continue the training. If nothing changes, go back and change something else."
    else:
        evidence["verdict"] = "worked"
        symptom = f"{what} worked: " + (
            f"{advised.rule} is gone" if advised is not None else "the run is not worse than its parent"
        )
        symptom += f", and the run gained {gain.value:.2f}." if gain is not None and gain.exceeds(SURE) else "."
    yield Finding(
        rule="change.judged",
        severity=severity,
        symptom=symptom,
        evidence=evidence,
        change=change,
        confirm=f"After {needed} steps, the symptom is gone and the reward is not lower than the parent's at the same "
        "steps.",
        step=observed.history.last_step if observed.history.steps else lineage.step,
        confirm_after=needed,
    )


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
    parent's end. None without data."""
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
    return [
        one.metrics[name]
        for one in history.steps
        if one.step > 0 and name in one.metrics and (until is None or one.step <= until)
    ]
