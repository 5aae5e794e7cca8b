"""Answers built from the texts in a recipe, and the grades that the reward and the scorer give them. No reference
answer is needed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from sparring.checks.evidence.answer_forms import find_tagged
from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.candidate_answers import EMPTY, GradedCandidate, grade_candidates
from sparring.checks.evidence.grading_inputs import Aspect
from sparring.checks.evidence.invited_forms import normalize_value
from sparring.checks.evidence.reference_episodes import ReferenceEpisodes, find_references
from sparring.checks.evidence.scripted_episodes import clip
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import find_reading_tools
from sparring.checks.evidence.task_contrast import find_separating_feature
from sparring.checks.rules.prompt import get_prompt
from sparring.environments import Environment
from sparring.findings import Finding, Severity

FEWEST = 2
"""The minimum number of tasks in which a problem must occur before it is reported."""
NUM_SHOWN = 4
_NO_VALUE = ("", "Done.", "nan", "inf", "1e999")
"""Texts that are not the correct answer of any task."""
_ANSWERS = {"answer", "expected", "label", "gold", "solution", "truth", "reference"}


async def find_overpaid_candidates(subject: Subject) -> list[Finding]:
    """Return a finding on answers whose reward counts as a success, although the scorer rejects their value in every
    format."""
    threshold = subject.config.evaluation.success_threshold - 1e-9
    seen = await grade_candidates(subject)
    right = _collect_right_values(await find_references(subject), seen)
    over = [
        one
        for one in seen
        if one.reward is not None
        and one.score is not None
        and one.reward >= threshold
        and one.score < min(1.0, one.reward)
        and not _holds(one.candidate.value, right[one.task.id])
    ]
    return [_report_overpaid(over, seen)] if over else []


def _collect_right_values(
    references: ReferenceEpisodes | None, seen: Sequence[GradedCandidate]
) -> defaultdict[str, set[str]]:
    """Return for each task the normalized values that are correct: those of its reference answer, and those that the
    scorer accepts."""
    right: dict[str, set[str]] = defaultdict(set)
    for name, reference in (references.by_task if references is not None else {}).items():
        right[name] |= {normalize_value(str(value)) for value in (reference.parts or {}).values()}
    for one in seen:
        if (one.score or 0.0) >= 1.0:
            right[one.task.id].add(normalize_value(one.candidate.value))
    return right


def _report_overpaid(over: Sequence[GradedCandidate], seen: Sequence[GradedCandidate]) -> Finding:
    kinds = _group_by_source(over)
    source, first = max(kinds.items(), key=lambda kind: _weight(kind[1], seen))
    return Finding(
        rule="reward.agreement",
        severity=Severity.ERROR,
        symptom=f"The reward gives {first[0].reward:g} to {_name_answer(first[0])}, {source}, which the scorer "
        f"rejects in every form (the score is {first[0].score:g}){_describe_tasks(first, seen)}.",
        evidence={
            "episodes": [one.shown for one in first[:NUM_SHOWN]],
            "also_paid": sorted({f"{kind}: {clip(those[0].candidate.value, 60)!r}" for kind, those in kinds.items()}),
        },
        change="Make the reward grade what the scorer grades: what was done, or whole values. If there is "
        "nothing to compare with, give 0.",
        confirm="No episode in the evidence earns the success threshold.",
    )


async def find_paid_empty_answers(subject: Subject) -> list[Finding]:
    """Return a finding on answers in the requested format that contain no value or no number and still get full
    marks."""
    seen = await grade_candidates(subject)
    idle = [
        one
        for one in seen
        if one.candidate.source == EMPTY and one.candidate.value in _NO_VALUE and _is_paid(subject, one)
    ]
    by_done = {(one.task.id, one.after) for one in idle if one.candidate.value == "Done."}
    references = await find_references(subject)
    if references is not None and references.graded <= {Aspect.MESSAGE, Aspect.WORDS}:
        # The grade depends on the message, and the message contains no answer.
        paid = [one for one in idle if not _is_rightly_empty(references, one)]
    else:
        paid = [one for one in idle if (one.task.id, one.after) not in by_done and one.candidate.message["content"]]
    if len({one.task.id for one in paid}) < FEWEST:
        return []
    return [
        Finding(
            rule="policies.empty",
            severity=Severity.WARNING,
            symptom=f"{_name_answer(paid[0])} is accepted as right, although it contains no answer{_describe_tasks(paid, seen)}.",
            evidence={"episodes": [one.shown for one in paid[:NUM_SHOWN]]},
            change="Give 0 to an answer without a value, and to any answer if there is nothing to compare it with.",
            confirm="The answers in the evidence earn nothing.",
        )
    ]


def _holds(text: str, right: set[str]) -> bool:
    """Return True if a string is a correct value in another format, or contains a correct value."""
    return bool({normalize_value(text), *map(normalize_value, re.findall(r"-?[\w.,]*\w", text))} & right)


def _is_rightly_empty(references: ReferenceEpisodes, one: GradedCandidate) -> bool:
    """Return True if the reference answer of the task is also empty, or is unknown."""
    reference = references.by_task.get(one.task.id)
    return reference is None or any(
        normalize_value(str(value)) in ("", "none", "null") for value in (reference.parts or {"": ""}).values()
    )


async def find_never_accepted(subject: Subject) -> list[Finding]:
    """Return a finding if a task field is named as the answer, but does not get full marks in any format on any task.
    This applies only to environments that grade the final message."""
    cls = subject.environment_class
    if cls is None or cls.final_state is not Environment.final_state or cls.is_done is not Environment.is_done:
        return []
    if set(await find_reading_tools(subject)) != set(subject.tools) or not find_tagged(
        await get_prompt(subject, subject.sample[0])
    ):
        return []  # the answer may be a call
    seen = await grade_candidates(subject)
    own = [one for one in seen if _is_field(one, _ANSWERS) and one.after == "nothing"]
    if len({one.task.id for one in own}) < FEWEST or any(_is_paid(subject, one) for one in seen):
        return []
    judge = "scorer" if subject.scorer is not None else "reward"
    return [
        Finding(
            rule="policies.expert",
            severity=Severity.WARNING,
            symptom=f"No answer was found that the {judge} accepts: it rejects the field {own[0].candidate.source} in all "
            f"{len({one.task.id for one in own})} tasks, however it is written.",
            evidence={"tried": [one.shown for one in own[:NUM_SHOWN]]},
            change=f"Print the value that the {judge} reads from such an answer, and the expected value; correct "
            "the difference.",
            confirm="The reference answer of every task scores 1.",
        )
    ]


def _is_field(one: GradedCandidate, words: set[str]) -> bool:
    """Return True if a candidate is a task field whose name contains one of these words."""
    source = one.candidate.source
    return source.startswith("`") and bool(set(split_words(source.strip("`").rpartition(".")[2])) & words)


def _is_paid(subject: Subject, one: GradedCandidate) -> bool:
    earned = one.score if subject.scorer is not None else one.reward
    return (earned or 0.0) >= 1.0


def _group_by_source(seen: Sequence[GradedCandidate]) -> dict[str, list[GradedCandidate]]:
    kinds: dict[str, list[GradedCandidate]] = defaultdict(list)
    for one in seen:
        kinds[one.candidate.source].append(one)
    return kinds


def _weight(some: Sequence[GradedCandidate], seen: Sequence[GradedCandidate]) -> tuple[bool, int, bool]:
    """Return a sort key that ranks kinds of answers by how well they show the cause.

    It consists of: whether a feature separates their tasks from the others, the number of tasks, and whether the text
    is the same in all of them.
    """
    num_texts = len({one.candidate.value for one in some})
    return _apart(some, seen) is not None, len({one.task.id for one in some}), num_texts == 1


def _apart(some: Sequence[GradedCandidate], seen: Sequence[GradedCandidate]) -> str | None:
    tasks = {one.task.id: one.task for one in some}
    kinds = {one.candidate.source for one in some}
    others = {one.task.id: one.task for one in seen if one.task.id not in tasks and one.candidate.source in kinds}
    return find_separating_feature(list(tasks.values()), list(others.values())) if len(tasks) > 1 else None


def _name_answer(one: GradedCandidate) -> str:
    text = clip(str(one.candidate.message["content"]), 80)
    return f"{text!r}{f' after {one.after}' if one.after != 'nothing' else ' at once'}"


def _describe_tasks(some: Sequence[GradedCandidate], seen: Sequence[GradedCandidate]) -> str:
    """Return a phrase with the number of tasks and the feature that separates them from the others."""
    what = _apart(some, seen)
    kinds = {one.candidate.source for one in some}
    num, of = (
        len({one.task.id for one in those}) for those in (some, [one for one in seen if one.candidate.source in kinds])
    )
    return f", in {num} of {of} tasks{f', those where {what}' if what else ''}"
