"""Symptoms of the format: what the policy says cannot be read from the first step on."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from sparring.detectors.evidence import Episode, named, shown
from sparring.diagnosis.observed import Observed
from sparring.diagnosis.registry import symptom
from sparring.diagnosis.sampling import HOT
from sparring.findings import Finding, Severity

FIRST_STEPS = 2
"""Which play the policy as it came, or nearly so."""
UNREADABLE, HARDLY_RIGHT = 0.3, 0.1
"""Share of the turns that are calls nobody can read or are cut at their limit, and of the episodes that are right."""
UNSURE = 0.3
"""Entropy, in nats a token, of a policy that does not know what comes next."""


@symptom("format.template")
def template(observed: Observed) -> Iterable[Finding]:
    """From the first step on three tenths of the turns are calls that cannot be read, or have no end, hardly an episode is right,
    and the policy is unsure of each token: the chat template, or the format that the prompt asks for, is not the one that it
    learned."""
    first = observed.trained[:FIRST_STEPS]
    played = [Episode((one.step, digest.task_id), digest) for one in first for digest in one.train]
    if len(first) < FIRST_STEPS or not played or observed.is_solved or observed.config.sampling.temperature >= HOT:
        return
    malformed, cut, entropy = (
        fmean(one.metrics.get(name, 0.0) for one in first)
        for name in ("rollout/format/malformed", "rollout/truncated_turns", "rollout/logprob/entropy")
    )
    right = fmean(observed.succeeds(one.digest) for one in played)
    if malformed + cut < UNREADABLE or right > HARDLY_RIGHT or entropy < UNSURE:
        return
    yield Finding(
        rule="format.template",
        severity=Severity.WARNING,
        symptom=f"from the first step on {malformed:.0%} of the turns were calls that cannot be read, {cut:.0%} had no end, "
        f"and {right:.0%} of the episodes were right.",
        evidence={
            "malformed_turns": round(malformed, 4), "cut_turns": round(cut, 4), "right": round(right, 4),
            "entropy": round(entropy, 4), "examples": shown(played),
        },
        change="Compare what the model is given with what it was trained on: its chat template, the tokens that end a turn, "
        "and the format of calls. `sparring check RECIPE --only prompt` shows the prompt; a warm start teaches the format.",
        confirm="rollout/format/malformed and rollout/truncated_turns are below 0.05 in the first step.",
        step=observed.history.last_step,
        trajectories=named(played),
        confirm_after=1,
    )  # fmt: skip
