"""A symptom of the format: from the first step on, the policy's calls and answers cannot be parsed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from sparring.detectors.evidence import Episode, named, shown
from sparring.diagnosis.histories import CHANGES
from sparring.diagnosis.observed import Observed
from sparring.diagnosis.sampling import HOT
from sparring.findings import Finding, Severity
from sparring.run_folders.history import StepRecord

FIRST_STEPS = 2
"""The number of first steps whose episodes come from nearly the initial policy."""
UNREADABLE, HARDLY_RIGHT, POOR = 0.3, 0.1, 0.3
"""The share of turns that are unreadable calls or are cut at their limit, the share of right episodes in the first
steps, and the share of right episodes now."""
UNSURE = 0.3
"""The entropy, in nats per token, of a policy that is uncertain of its tokens."""


def template(observed: Observed) -> Iterable[Finding]:
    """Report that the chat template, or the format that the prompt requests, is not the one that the policy learned.

    The rule reports three cases. First, the chat template contradicts itself, which is an error however well the run
    learns. Second, few episodes are correct, and three tenths of the turns are unreadable from the first step on. An
    unreadable turn is a call that cannot be parsed although it was not truncated, or a turn that does not end while the
    policy is uncertain of each token. Third, for three tenths of the turns, the chat template does not continue the
    text as it was sampled."""
    if observed.template_problem is not None:
        yield _contradicts_itself(observed, observed.template_problem)
        return
    first = observed.trained[:FIRST_STEPS]
    played = [Episode((one.step, digest.task_id), digest) for one in first for digest in one.train]
    if len(first) < FIRST_STEPS or not played or observed.is_solved or observed.config.sampling.temperature >= HOT:
        return
    turns = _measure_turns(first)
    right = fmean(observed.succeeds(one.digest) for one in played)
    is_poor = right <= HARDLY_RIGHT and observed.success <= POOR
    if turns.are_rewritten or (turns.are_unreadable and is_poor):
        yield _does_not_fit(observed, played, turns, right)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    """The format of the turns of some steps, as shares of the turns."""

    malformed: float
    cut: float
    refused: float
    """The share of turns that the chat template does not continue as they were sampled."""
    entropy: float
    """The mean entropy of the sampled tokens, in nats."""

    @property
    def are_rewritten(self) -> bool:
        return self.refused >= UNREADABLE

    @property
    def are_unreadable(self) -> bool:
        # A call that a budget cuts cannot be read either. A policy that knows its format is certain of it.
        is_uncertain = self.malformed + self.cut >= UNREADABLE and self.entropy >= UNSURE
        return self.malformed - self.cut >= UNREADABLE or is_uncertain


def _measure_turns(steps: Sequence[StepRecord]) -> _Turns:
    malformed, cut, entropy, refused = (
        fmean(one.metrics.get(name, 0.0) for one in steps)
        for name in (
            "rollout/format/malformed",
            "rollout/truncated_turns",
            "rollout/logprob/entropy",
            "rollout/breaks/splice_refused",
        )
    )
    return _Turns(malformed=malformed, cut=cut, refused=refused, entropy=entropy)


def _contradicts_itself(observed: Observed, problem: str) -> Finding:
    return Finding(
        rule="format.template",
        severity=Severity.ERROR,
        symptom=f"the chat template contradicts itself: {problem}.",
        evidence={
            "steps": observed.late_steps,
            "problem": problem,
            "model": observed.config.model.name,
        },
        change="Use the chat template that the model was trained with, and train again: what the policy learned "
        "with another template is lost when the right one is used.",
        confirm="The training starts without a warning about the chat template.",
        step=observed.history.last_step,
        confirm_after=1,
    )


def _does_not_fit(observed: Observed, played: Sequence[Episode], turns: _Turns, right: float) -> Finding:
    return Finding(
        rule="format.template",
        severity=Severity.WARNING,
        symptom=f"from the first step on, the chat template does not continue {turns.refused:.0%} of the turns as they were "
        "sampled."
        if turns.are_rewritten
        else f"from the first step on, {turns.malformed:.0%} of the turns were calls that cannot be read, "
        f"{turns.cut:.0%} had no end, and {right:.0%} of the episodes were right.",
        evidence={
            "turns_not_continued": round(turns.refused, 4),
            "malformed_turns": round(turns.malformed, 4),
            "cut_turns": round(turns.cut, 4),
            "right": round(right, 4),
            "entropy": round(turns.entropy, 4),
            "examples": shown(played),
        },
        change=CHANGES["splice_refused"]
        if turns.are_rewritten
        else "Compare the model's input with what it was trained on: its chat template, the tokens that end a turn, and the "
        "format of calls. `sparring check RECIPE --only prompt` shows the prompt; a warm start teaches the format.",
        confirm="rollout/format/malformed, rollout/truncated_turns and rollout/breaks/splice_refused are below 0.05 "
        "in the first step.",
        step=observed.history.last_step,
        trajectories=named(played),
        confirm_after=1,
    )
