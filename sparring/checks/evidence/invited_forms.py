"""Findings on correct answers that a grader rejects, although they follow the prompt's instructions or the spelling of
the tools."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.changed_answers import split_items
from sparring.checks.evidence.grading_inputs import replace_last_message
from sparring.checks.evidence.legal_calls import leaves
from sparring.checks.evidence.reference_episodes import ReferenceEpisodes
from sparring.checks.evidence.returned_rows import parse_result
from sparring.checks.evidence.scripted_episodes import Episode, clip, grade_episode
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import survey_tasks
from sparring.checks.rules.prompt import find_example, get_prompt
from sparring.environments import answer
from sparring.findings import Finding, Severity
from sparring.types import Json, Message

FEWEST = 2
"""The minimum number of tasks in which a problem must occur before it is reported."""
MOST_TASKS = 12
_REASONING = re.compile(
    r"\bstep by step\b|\bthink (?:first|through|about|before)\b|\bshow (?:your|the|all) (?:work|steps|calculations?|reasoning)\b|"
    r"\bexplain\b|\breason (?:first|about|through)\b|\bon (?:the|a) (?:last|final) line\b|\bfirst \w+ your \w+",
    re.IGNORECASE,
)
_NOTHING_ELSE = re.compile(
    r"\b(?:nothing (?:else|more)|(?:not|don't|never|without) (?:explain|think|show|reason)|no (?:explanation|other text)|"
    r"only the|just the|alone)\b",
    re.IGNORECASE,
)
_ANY_ORDER = re.compile(
    r"\bin any order\b|\border (?:does not|doesn't|is not) (?:matter|important)\b|\bin whatever order\b", re.IGNORECASE
)
_ANY_CASE = re.compile(
    r"\b(?:case|capitals?|capitali[sz]ation) (?:does not|doesn't|do not|is not) (?:matter|important)\b|\bcase[- ]insensitive",
    re.IGNORECASE,
)
_SPELLING = re.compile(r"\b(?:lower|upper|capital|small letters|title)\b|-?case\b", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<![\w.,])-?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w,])")
_BEFORE = "There are 3 things to look at, and 2 of them count."


async def find_refused_forms(subject: Subject, references: ReferenceEpisodes, right: list[Episode]) -> list[Finding]:
    """Return findings on correct answers that a grader rejects in several tasks, although the prompt specifies their
    format or the tools use their spelling."""
    results = {one.task.id: [call.result.content for call in one.results] for one in await survey_tasks(subject)}
    refused: dict[str, list[dict[str, Json]]] = {}
    for one in right[:MOST_TASKS]:
        if one.score is None or one.score < 1.0:
            continue
        prompt = await get_prompt(subject, one.reference.task)
        for what, message in _write_as_invited(references, one, prompt, results.get(one.reference.task.id, [])):
            again = await grade_episode(
                subject, references, "invited", one.reference, replace_last_message(one.trajectory, message)
            )
            judge = _find_refusing(one, again)
            if judge is not None:
                refused.setdefault(f"{what}, and the {judge} rejects", []).append(
                    {**again.shown, "said": get_text(message)}
                )
    return [
        Finding(
            rule="prompt.form",
            severity=Severity.WARNING,
            symptom=f"{what} right answers in this form: {clip(str(shown[0]['said']), 80)!r} instead of "
            f"{clip(str(shown[0]['right']), 80)!r}.",
            evidence={"tasks": shown[:4], "num": len(shown)},
            change="Make the grader accept this form, or rule it out in the prompt.",
            confirm="A right answer in this form scores 1.",
        )
        for what, shown in refused.items()
        if len(shown) >= FEWEST
    ]


def _find_refusing(right: Episode, again: Episode) -> str | None:
    """Return the grader that gives the rewritten answer a lower grade than the correct answer, or None if neither
    grader does."""
    if again.score is not None and again.score < 1.0:
        return "scorer"
    is_less = right.reward is not None and again.reward is not None and again.reward < right.reward - 1e-6
    return "reward" if is_less else None


def _write_as_invited(
    references: ReferenceEpisodes, one: Episode, prompt: str, results: list[str]
) -> Iterator[tuple[str, Message]]:
    parts, form = dict(one.reference.parts or {}), references.form
    if form.tool is not None or not parts:
        return
    text = get_text(one.reference.answer)
    reasons = _REASONING.search(prompt)
    if reasons is not None and not _NOTHING_ELSE.search(prompt):
        yield f"The prompt asks for more than the answer ({reasons[0]!r})", answer(f"{_BEFORE}\n{text}")
    order = _ANY_ORDER.search(prompt)
    if order is not None:
        turned = {name: _reverse_items(value) for name, value in parts.items()}
        if turned != parts:
            yield f"The prompt states {order[0]!r}", form.message(turned)
    case = _ANY_CASE.search(prompt)
    if case is not None:
        swapped: dict[str, Json] = {
            name: value.swapcase() if isinstance(value, str) else value for name, value in parts.items()
        }
        if swapped != parts:
            yield f"The prompt states {case[0]!r}", form.message(swapped)
    shown = _spell_as_shown(
        parts, [prompt, *results], find_example([{"role": "user", "content": prompt}], references) or ""
    )
    if shown != parts and (case is not None or not _SPELLING.search(prompt)):
        yield "The tools or the prompt spell the answer differently", form.message(shown)


def _reverse_items(value: Json) -> Json:
    items = split_items(value)
    if items is None or len(items[0]) < 2:
        return value
    turned, mark = items[0][::-1], items[1]
    return value if mark == "[" else mark.join(map(str, turned)) if mark else turned


def _spell_as_shown(parts: Mapping[str, Json], texts: list[str], example: str) -> dict[str, Json]:
    """Return the parts with the spelling of the prompt and the results, if these texts contain exactly one other
    spelling."""
    spelled: dict[str, set[str]] = {}
    for text in texts:
        found = {one for one in list_leaves(text) if isinstance(one, str)} | set(_THOUSANDS.findall(text))
        for one in found:
            spelled.setdefault(normalize_value(one), set()).add(one)
    whole = "\n".join(texts)
    changed: dict[str, Json] = dict(parts)
    for name, value in parts.items():
        if (
            isinstance(value, str)
            and len(normalize_value(value)) > 2
            and not re.search(rf"(?<!\w){re.escape(value)}(?!\w)", whole)
        ):
            others = spelled.get(normalize_value(value), set()) - {value}
            is_number = value.replace(".", "").isdigit()
            other = others.pop() if len(others) == 1 else None
            if other is not None and not (is_number and ("," not in other or re.search(r"\d", example))):
                changed[name] = other
    return changed


def list_leaves(text: str) -> list[Json]:
    """Return the scalars of a result that is JSON, or else the text itself."""
    return [one for _, one in leaves(parse_result(text))]


def normalize_value(text: str) -> str:
    """Normalize a value so that case, spaces, punctuation, Unicode variants of the same letter, and trailing zeros do
    not affect comparisons."""
    number = re.fullmatch(r"\s*(-?[\d,]*\.?\d+)\s*", text)
    if number is not None:
        return f"{float(number[1].replace(',', '')):g}"
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text)).casefold()
