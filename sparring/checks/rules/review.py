"""Rule on defects that only a reader finds: for example, texts that contradict the code, or labels that contradict the
prompt."""

from __future__ import annotations

from collections.abc import Iterable

from sparring.assembly import load_message_engine
from sparring.checks.evidence.review_material import describe_recipe
from sparring.checks.evidence.reviewer import Defect, Reviewer
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.user_inputs import endpoint_overrides
from sparring.checks.running.time_budget import REVIEW_SECONDS, Timing
from sparring.config import load_config
from sparring.findings import Finding, Severity
from sparring.types import Json

LEAST_CERTAINTY = 0.5
"""Below this certainty, a reported defect is a note."""


async def defects(subject: Subject) -> Iterable[Finding]:
    """A model that reads the source, the prompts, the tasks and some episodes reports no defect.

    The other rules only compare different results of the code with each other. They do not understand texts, so they
    cannot know that a price list contradicts the labels, or that a description promises a different unit. The model at
    `--reviewer` reads both the code and the texts. It can request episodes to test a suspicion, and each finding shows
    the episode that it names as proof. A finding is never an error, since a model may be wrong. It is a note if the
    reviewer is uncertain, or if its quotation is not in the material.
    """
    (reviewer,) = subject.user_inputs.reviewer
    config = load_config(subject.recipe, [*subject.overrides, *endpoint_overrides(reviewer, option="--reviewer")])
    subject.timing = Timing(seconds=REVIEW_SECONDS)
    subject.timing.begin("review.defects", weight=8.0)
    material = await describe_recipe(subject)
    engine = load_message_engine(config, subject.folder)
    try:
        reported = await Reviewer(subject, engine).review(material)
    finally:
        await engine.close()
    return [_report(one, material, engine.fingerprint) for one in reported]


def _report(defect: Defect, material: str, reviewer: str) -> Finding:
    is_quoted = bool(defect.quote.strip()) and _squeeze(defect.quote) in _squeeze(material)
    is_likely = is_quoted and defect.certainty >= LEAST_CERTAINTY
    evidence: dict[str, Json] = {
        "place": defect.place,
        "quote": defect.quote,
        "is_quoted_exactly": is_quoted,
        "tasks": list(defect.tasks),
        "because": defect.because,
        "episode": defect.probe,
        "certainty": defect.certainty,
        "reviewer": reviewer,
    }
    return Finding(
        rule="review.defects",
        severity=Severity.WARNING if is_likely else Severity.NOTE,
        symptom=defect.symptom,
        evidence=evidence,
        change=defect.change or "Read the place in the evidence, and correct the text or the code.",
        confirm="Run the episode in the evidence again, or `sparring check` with the same --reviewer: the defect "
        "is no longer reported.",
    )


def _squeeze(text: str) -> str:
    return "".join(text.split())
