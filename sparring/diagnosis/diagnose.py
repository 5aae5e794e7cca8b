"""Ask every rule about a run, leave out what another finding explains, and say what to change first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from sparring.detectors import DETECTORS
from sparring.diagnosis.course import STALL_STEPS, thirds
from sparring.diagnosis.observed import Observed
from sparring.diagnosis.proposal import overrides
from sparring.diagnosis.registry import SYMPTOMS, Symptom
from sparring.findings import Finding, Severity
from sparring.logs import get_logger
from sparring.types import Json

logger = get_logger(__name__)

State: TypeAlias = Literal["change", "fine", "solved", "early"]

TUNING = ("budgets.", "difficulty.", "evaluation.", "episodes.", "signal.", "stall.", "tools.")
"""Advice on how to train, which an alarm may explain."""
ALARMS = (
    "system.",
    "environment.",
    "stall.validation_flat",
    "reward.",
    "answers.",
    "exploits.",
    "judge.",
    "tools.spam",
)
"""What, as an error, makes advice on training idle: a system that does not work, and a reward that pays for something else."""
EXPLAINS: Mapping[str, tuple[str, ...]] = {
    "system.stalled": ("system.starved", "system.stragglers"),
    "system.stragglers": ("system.starved",),
    "system.filtered": ("difficulty.", "evaluation.completion"),
    "tools.failing": ("budgets.turns_in_training", "evaluation.", "episodes.looping", "difficulty."),
    "episodes.looping": (
        "system.filtered", "stall.groups_agree", "budgets.turns_in_training", "evaluation.completion", "evaluation.uneven_turns",
        "difficulty.",
    ),
    "evaluation.all_zero": ("episodes.", "system.filtered", "stall.", "difficulty.", "evaluation.", "budgets.turns_in_training"),
    "evaluation.uneven_turns": ("budgets.turns_in_training", "difficulty."),
    "evaluation.confidently_wrong": (
        "evaluation.completion", "stall.groups_agree", "stall.flat_from_start", "system.filtered", "difficulty.",
    ),
    "budgets.turn_tokens_in_training": ("evaluation.completion", "difficulty.", "signal."),
    "budgets.turns_in_training": ("evaluation.completion", "difficulty.", "signal."),
    "budgets.context_in_training": ("evaluation.completion", "difficulty.", "signal."),
    "stall.flat_from_start": (
        "stall.groups_agree", "system.filtered", "evaluation.all_zero", "evaluation.completion", "difficulty.",
        "stall.nothing_moves",
    ),
    "stall.groups_agree": ("difficulty.", "signal.", "evaluation.completion", "system.filtered"),
    "stall.validation_flat": ("difficulty.", "signal.", "evaluation.completion"),
    "stall.collapse": (
        "budgets.","evaluation.", "difficulty.", "signal.", "stall.groups_agree", "system.filtered", "system.stale"),
    "stall.nothing_moves": ("difficulty.", "signal.", "evaluation.completion"),
    "signal.valid_below_mean": ("difficulty.", "evaluation.completion"),
}  # fmt: skip
"""What a finding explains, by the beginnings of names: advice that would treat its consequence is left out."""
ORDER = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silenced:
    """A finding that is left out, and which one explains it."""

    finding: Finding
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is to be said of a run, the most important first."""

    run: str
    step: int
    state: State
    headline: str
    """One sentence: what to change first, or why nothing."""
    findings: tuple[Finding, ...]
    """The heaviest first; those of detectors among them."""
    silenced: tuple[Silenced, ...]
    course: Mapping[str, Json]
    """Reward, score and validation, at first and now."""

    @property
    def first(self) -> Finding | None:
        """The one to act on."""
        return next((one for one in self.findings if one.severity is not Severity.NOTE), None)

    def as_json(self) -> dict[str, Json]:
        return {
            "format": 1, "run": self.run, "step": self.step, "state": self.state, "headline": self.headline,
            "course": dict(self.course), "findings": [one.as_json() for one in self.findings],
            "silenced": [{"rule": one.finding.rule, "by": one.by, "symptom": one.finding.symptom} for one in self.silenced],
        }  # fmt: skip


def diagnosed(run: str, observed: Observed) -> Diagnosis:
    """Pure: the same evidence gives the same diagnosis. `run` is how commands name it."""
    own: list[Finding] = []
    observed = replace(observed, said=[*observed.said, *_detected(observed)])
    asked = observed
    for one in SYMPTOMS.values():
        found = _asked(one, asked)
        if found:
            own += found
            asked = replace(asked, said=[*asked.said, *found])
    # What a detector said twice counts once, as heavily as it was said.
    heard = {
        (one.rule, str(one.evidence.get("subject", ""))): one
        for severity in reversed(ORDER)
        for one in observed.said
        if one.severity is severity
    }
    everything = sorted([*own, *heard.values()], key=lambda one: ORDER.index(one.severity))
    silenced = _silenced(everything)
    left_out = [one.finding for one in silenced]
    findings = tuple(one for one in everything if all(one is not other for other in left_out))
    state, headline = _verdict(run, observed, findings)
    return Diagnosis(
        run=run, step=observed.history.last_step if observed.history.steps else 0, state=state, headline=headline,
        findings=findings, silenced=tuple(silenced), course=_course(observed),
    )  # fmt: skip


def _asked(one: Symptom, observed: Observed) -> list[Finding]:
    """What a rule says; of one that fails, nothing: the others, and the report that shows them, go on."""
    try:
        return list(one.rule(observed))
    except Exception as error:  # noqa: BLE001 - an older run may lack what a rule takes for granted
        logger.warning("the rule %s failed (%r); the diagnosis goes on without it", one.name, error)
        return []


def _detected(observed: Observed) -> list[Finding]:
    """What detectors say of the run as it stands, of runs, too, that were trained without them."""
    if not observed.history.steps:
        return []
    off = observed.config.detectors.off
    return [finding for name, one in DETECTORS.items() if name not in off for finding in one.rule(observed.history)]


def _silenced(everything: Sequence[Finding]) -> tuple[Silenced, ...]:
    """What others explain, with the first cause of each. Of two that explain each other the heavier, or the first, stays."""
    causes: dict[int, Finding] = {}
    for finding in reversed(everything):
        cause = next(
            (one for one in everything if one is not finding and id(one) not in causes and _explains(one, finding)),
            None,
        )
        if cause is not None:
            causes[id(finding)] = cause

    def first(finding: Finding) -> Finding:
        cause = causes.get(id(finding))
        return finding if cause is None else first(cause)

    return tuple(Silenced(finding=one, by=first(one).rule) for one in everything if id(one) in causes)


def _explains(cause: Finding, finding: Finding) -> bool:
    if ORDER.index(cause.severity) > ORDER.index(finding.severity) or cause.rule == finding.rule:
        return False
    is_alarm = cause.severity is Severity.ERROR and cause.rule.startswith(ALARMS)
    is_advice = (
        finding.severity is not Severity.ERROR and finding.rule.startswith(TUNING) and finding.rule not in ALARMS
    )
    return (is_alarm and is_advice) or finding.rule.startswith(EXPLAINS.get(cause.rule, ("\0",)))


def _verdict(run: str, observed: Observed, findings: Sequence[Finding]) -> tuple[State, str]:
    first = next((one for one in findings if one.severity is not Severity.NOTE), None)
    if first is not None:
        settings = " ".join(overrides(first.settings))
        if settings:
            return "change", f"Change one thing, {settings}: {first.symptom}"
        return "change", f"Change one thing, in words below ({first.rule}): {first.symptom}"
    rewards = observed.series("rollout/reward/mean")
    if observed.trained and observed.is_solved:
        return "solved", f"Nothing to change: {observed.success:.0%} of the last episodes are right."
    if len(rewards) < STALL_STEPS:
        return (
            "early",
            f"Nothing found yet; after {len(rewards)} steps little can be said, most of it from step {STALL_STEPS} on.",
        )
    rise = thirds(rewards)
    ends = f"{rewards[0]:.2f} at first, {observed.now('rollout/reward/mean'):.2f} now"
    if rise is not None and rise.exceeds(2.0):
        return "fine", f"Nothing to change: the reward rises ({ends})."
    return "fine", f"Nothing found to change; the reward: {ends}."


def _course(observed: Observed) -> dict[str, Json]:
    told: dict[str, Json] = {"steps": len(observed.trained)}
    for name, shown in (("rollout/reward/mean", "reward"), ("rollout/score/mean", "score")):
        values = observed.series(name)
        if values:
            told[shown] = [round(values[0], 4), round(observed.now(name), 4)]
    if observed.validations:
        name = "val/score/mean" if "val/score/mean" in observed.validations[-1].metrics else "val/reward/mean"
        ends = (observed.validations[0], observed.validations[-1])
        told["validation"] = [round(one.metrics.get(name, 0.0), 4) for one in ends]
    return told
