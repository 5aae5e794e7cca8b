"""Applies every rule to a run, omits findings that another finding explains, and proposes what to change first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from sparring.detectors import DETECTORS
from sparring.detectors.rewards import EVALUATION_SHARE
from sparring.diagnosis import SYMPTOMS
from sparring.diagnosis.course import STALL_STEPS, thirds
from sparring.diagnosis.observed import Observed, Symptom
from sparring.diagnosis.proposal import overrides
from sparring.diagnosis.sampling import BELOW
from sparring.evaluation.claim import Claim
from sparring.findings import Finding, Severity
from sparring.runtime.logs import get_logger
from sparring.types import Json

logger = get_logger(__name__)

State: TypeAlias = Literal["change", "fine", "solved", "early"]

TUNING = (
    "batch.",
    "budgets.",
    "difficulty.",
    "evaluation.",
    "episodes.",
    "format.",
    "signal.",
    "stall.",
    "tasks.",
    "tools.",
)
"""Rules with advice on training. An alarm may explain their findings."""
ALARMS = (
    "system.",
    "environment.",
    "stall.validation_flat",
    "reward.",
    "answers.",
    "exploits.",
    "judge.",
)
"""Rules whose errors make advice on training useless, because the system does not work or the reward pays for something
else."""
CUT_SHORT = (
    "budgets.",
    "difficulty.",
    "evaluation.all_zero",
    "evaluation.completion",
    "signal.",
    "stall.groups_agree",
    "stall.flat_from_start",
    "system.filtered",
)
"""The consequences of episodes that are cut before they can be right."""
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
    "budgets.turn_tokens_in_training": CUT_SHORT,
    "budgets.turns_in_training": CUT_SHORT,
    "budgets.context_in_training": CUT_SHORT,
    "stall.flat_from_start": (
        "stall.groups_agree", "system.filtered", "evaluation.all_zero", "evaluation.completion", "difficulty.",
        "stall.nothing_moves",
    ),
    "stall.groups_agree": ("difficulty.", "signal.", "evaluation.completion", "system.filtered"),
    "stall.validation_flat": ("difficulty.", "signal.", "evaluation.completion"),
    "stall.collapse": (
        "budgets.","evaluation.", "difficulty.", "signal.", "stall.groups_agree", "system.filtered", "system.stale"),
    "optimizer.updates_too_large": (
        "answers.", "budgets.", "difficulty.", "episodes.", "evaluation.", "signal.", "stall.", "system.filtered",
        "system.mismatch", "system.stale", "tools.",
    ),
    "reward.constant": (
        "difficulty.", "evaluation.", "episodes.", "reward.paid_for_wrong", "signal.", "stall.", "system.filtered", "tasks.",
    ),
    "format.template": (
        "answers.", "budgets.", "difficulty.", "episodes.", "evaluation.", "signal.", "stall.", "system.filtered", "tools.",
        "histories.changed",
    ),
    "tasks.labels": ("difficulty.", "evaluation.completion", "signal.", "stall.groups_agree"),
    "reward.disagrees": ("difficulty.", "evaluation.completion", "signal.", "stall.", "tasks."),
    "batch.too_small": ("difficulty.", "signal.", "stall.", "system.filtered"),
    "sampling.temperature": ("budgets.", "difficulty.", "signal.", "stall.", "tasks.", "tools."),
    "stall.nothing_moves": ("budgets.", "difficulty.", "episodes.", "evaluation.", "signal.", "stall.", "system.filtered"),
    "signal.valid_below_mean": ("difficulty.", "evaluation.completion"),
}  # fmt: skip
"""For each finding, the findings that it explains, as prefixes of names. Advice about its consequences is left out."""
ORDER = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
TASKS = 4
CAUSES: Mapping[str, int] = {
    "system.": 0,
    "environment.": 0,
    "clients.": 0,
    "histories.": 0,
    "optimizer.": 1,
    "stall.collapse": 1,
    "stall.nothing_moves": 1,
    "format.": 2,
    "reward.": 2,
    "tools.": 2,
    "sampling.": 2,
    "budgets.": 3,
    "evaluation.all_zero": 3,
    "system.filtered": TASKS,
    "system.memory": 5,
    "system.stragglers": 5,
    "system.window": 5,
    "system.starved": 6,
}
"""The order of findings of the same severity, by the longest matching prefix of the name. What does not work at all
comes first. Then come the size of the updates, the reward and the format, budgets, tasks and the rest. What does not
affect learning comes last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silenced:
    """A finding that is omitted, and the rule that explains it."""

    finding: Finding
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings about a run, with the most important one first."""

    run: str
    step: int
    state: State
    headline: str
    """One sentence that states what to change first, or why nothing needs to change."""
    findings: tuple[Finding, ...]
    """The findings, including those of detectors, with the most severe one first."""
    silenced: tuple[Silenced, ...]
    past: tuple[Finding, ...]
    """Detector findings from training that no longer apply."""
    course: Mapping[str, Json]
    """The reward, score and validation results, at first and now."""
    claim: Claim | None = None
    """The claim from the evaluations, or None if they were not read."""

    @property
    def first(self) -> Finding | None:
        """The finding to act on, or None if nothing needs to change."""
        if self.state != "change":
            return None
        return next(one for one in self.findings if one.severity is not Severity.NOTE)

    def as_json(self) -> dict[str, Json]:
        return {
            "format": 1,
            "run": self.run,
            "step": self.step,
            "state": self.state,
            "headline": self.headline,
            "course": dict(self.course),
            "findings": [one.as_json() for one in self.findings],
            "silenced": [
                {"rule": one.finding.rule, "by": one.by, "symptom": one.finding.symptom} for one in self.silenced
            ],
            "past": [one.as_json() for one in self.past],
            "claim": None if self.claim is None else self.claim.as_json(),
        }


def diagnose(run: str, observed: Observed) -> Diagnosis:
    """Return the diagnosis of a run. It depends only on `observed`. `run` is the name of the run in commands."""
    holding, past = _reported_by_detectors(observed)
    observed = replace(observed, detected=holding)
    for rule in SYMPTOMS.values():
        found = _apply(rule, observed)
        if found:
            observed = replace(observed, diagnosed=[*observed.diagnosed, *found])
    everything = sorted([*observed.diagnosed, *holding], key=_weight)
    silenced = _silenced(everything)
    left_out = [one.finding for one in silenced]
    findings = tuple(one for one in everything if all(one is not other for other in left_out))
    state, headline = _verdict(run, observed, findings)
    return Diagnosis(
        run=run,
        step=observed.history.last_step,
        state=state,
        headline=headline,
        findings=findings,
        silenced=tuple(silenced),
        past=tuple(past),
        course=_course(observed),
    )


def _apply(rule: Symptom, observed: Observed) -> list[Finding]:
    """Return the findings of a rule. A rule that raises an exception finds nothing, so that the other rules and the
    report still work."""
    try:
        return list(rule.function(observed))
    except Exception as error:  # noqa: BLE001 - an older run may lack what a rule expects
        logger.warning("the rule %s failed (%r); the diagnosis continues without this rule", rule.name, error)
        return []


def _detected(observed: Observed) -> list[Finding]:
    """Return the detectors' findings on the whole run, even if it was executed without detectors."""
    if not observed.history.steps:
        return []
    off = observed.config.detectors.off
    return [finding for name, one in DETECTORS.items() if name not in off for finding in one.function(observed.history)]


def _reported_by_detectors(observed: Observed) -> tuple[list[Finding], list[Finding]]:
    """Return the detectors' findings that apply now, each once, and the findings that no longer apply.

    A finding applies if the detectors report it on the whole run. An error continues to apply, because a hack that
    every episode uses can no longer be found by comparing episodes. It does not apply if the scorer counts the run as
    solved, or if the detector no longer exists. Findings that cannot be reproduced (from scanners of the recipe, or
    from training itself) always apply.
    """
    by_key: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for one in observed.detected:
        by_key[_key(one)].append(one)
    present = {_key(one): one for one in sorted(_detected(observed), key=_weight, reverse=True)}
    is_solved = observed.is_solved
    families = {name.partition(".")[0] for name in DETECTORS}
    unasked = {f"exploits.{name}" for name in observed.config.detectors.scanners}
    unasked |= {one.rule for one in observed.detected if one.rule.partition(".")[0] not in families}
    holds, past = [], []
    for key in {**by_key, **present}:
        before = sorted(by_key[key], key=_weight)
        one = present.get(key) or before[0]
        first = min((other.step for other in before if other.step is not None), default=one.step)
        if first != one.step:
            one = replace(one, first_step=first)
        outlives = one.severity is Severity.ERROR and not is_solved if one.rule in DETECTORS else one.rule in unasked
        (holds if key in present or outlives else past).append(one)
    return holds, past


def _key(finding: Finding) -> tuple[str, str]:
    """Return the rule and the subject of a finding."""
    return finding.rule, str(finding.evidence.get("subject", ""))


def _weight(finding: Finding) -> tuple[int, int]:
    """Return the sort key: errors first, and causes before their consequences."""
    beginnings = [one for one in CAUSES if finding.rule.startswith(one)]
    return ORDER.index(finding.severity), CAUSES[max(beginnings, key=len)] if beginnings else TASKS


def _silenced(everything: Sequence[Finding]) -> tuple[Silenced, ...]:
    """Return the findings that other findings explain, each with its first cause.

    If two findings explain each other, the more severe one remains, or the first one if they are equally severe.
    """
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
    is_solved = observed.is_solved
    # A solved run needs no advice, but an error may put its success in doubt.
    least = ORDER.index(Severity.ERROR if is_solved else Severity.WARNING)
    first = next((one for one in findings if ORDER.index(one.severity) <= least), None)
    if first is not None:
        settings = " ".join(overrides(first.settings))
        if settings:
            return "change", f"Change one thing, {settings}: {first.symptom}"
        return "change", f"Change one thing, as described below ({first.rule}): {first.symptom}"
    rewards = observed.series("rollout/reward/mean")
    if is_solved:
        return "solved", f"Nothing to change: {observed.success:.0%} of the last episodes are right."
    if len(rewards) < STALL_STEPS:
        return (
            "early",
            f"Nothing found yet after {len(rewards)} steps; most rules need {STALL_STEPS} steps.",
        )
    rise = thirds(rewards)
    ends = f"{rewards[0]:.2f} at first, {observed.now('rollout/reward/mean'):.2f} now"
    if rise is not None and rise.exceeds(2.0):
        return "fine", f"Nothing to change: the reward rises ({ends}).{_validated(observed)}"
    return "fine", f"Nothing found to change; the reward is {ends}.{_validated(observed)}"


def _validated(observed: Observed) -> str:
    """Return the validation reward at first and now as a sentence, and that it has too few tasks if it is far below training:
    with enough of them, `evaluation.below_training` reports it."""
    if len(observed.validations) < 2:
        return ""
    first, last = observed.validations[0].metrics, observed.validations[-1].metrics
    reached, trained = last["val/reward/mean"], observed.now("rollout/reward/mean")
    text = f" Validation: {first['val/reward/mean']:.2f} at first, {reached:.2f} now"
    is_untested = BELOW in observed.config.detectors.off  # the test that finds too few tasks was not made
    if is_untested or trained <= 0 or reached >= EVALUATION_SHARE * trained:
        return f"{text}."
    return (
        f"{text}, far below training, but {last.get('val/reward/num_prompts', 0):.0f} validation tasks are too few to exclude "
        "chance. Validate on more tasks to learn whether the policy memorizes those of training."
    )


def _course(observed: Observed) -> dict[str, Json]:
    course: dict[str, Json] = {"steps": len(observed.trained)}
    for name, shown in (("rollout/reward/mean", "reward"), ("rollout/score/mean", "score")):
        values = observed.series(name)
        if values:
            course[shown] = [round(values[0], 4), round(observed.now(name), 4)]
    if observed.validations:
        name = "val/score/mean" if "val/score/mean" in observed.validations[-1].metrics else "val/reward/mean"
        ends = (observed.validations[0], observed.validations[-1])
        course["validation"] = [round(one.metrics.get(name, 0.0), 4) for one in ends]
    return course
