"""Findings on tools that show the reference answer itself, under a name such as `answer` or from an undocumented
file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.legal_calls import SLOW_SECONDS, run_calls
from sparring.checks.evidence.reference_episodes import ReferenceEpisode, ReferenceEpisodes
from sparring.checks.evidence.returned_rows import parse_result
from sparring.checks.evidence.scripts import leaves, to_text
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import find_reading_tools, get_documentation, survey_task
from sparring.findings import Finding, Severity
from sparring.types import Json

NUM_TASKS = 4
FEWEST_TASKS = 2
_ASKED = ("answer", "solution", "expected", "task", "gold", "label", ".", ":", '"')
"""Texts to search for, in addition to the names of the parts of the answer."""
_ANSWERS = {"answer", "solution", "gold", "groundtruth", "truth"}
"""Words in names under which answers are stored."""
_HIDDEN = re.compile(r"(?:^|[\s/\"'(])(\.[A-Za-z_][\w.-]*|__?[a-z][\w.-]*)(?=[:\"'\s)/]|$)")
_OF_A_RECORD = 3
"""A result with at least this number of fields is more than a question and its answer."""
_WINDOW = 160
"""The number of characters after a name that must contain the whole answer."""


async def find_shown_answers(subject: Subject, references: ReferenceEpisodes) -> list[Finding]:
    """Return findings on tools that show the whole answer in a place that is not meant for the policy, in at least two
    tasks."""
    if subject.timing.episode_seconds > SLOW_SECONDS:
        return []
    seen: dict[tuple[str, str], list[dict[str, Json]]] = {}
    reading = await find_reading_tools(subject)
    for reference in references.sampled(subject)[:NUM_TASKS]:
        parts = {name: to_text(value) for name, value in (reference.parts or {}).items()}
        secret = {name: value for name, value in parts.items() if len(value) > 1}
        prompt = "\n".join(get_text(message) for message in reference.task.messages)
        if not secret or all(_stands_in(value, prompt) for value in secret.values()):
            continue
        results = await _collect_results(subject, reference, reading, list(secret))
        for tool, where, call, answer in _find_shown(subject, results, secret):
            shown: dict[str, Json] = {
                "task": reference.task.id,
                "call": call,
                "answer": answer[:300],
                "reference_answer": secret,
            }
            seen.setdefault((tool, where), []).append(shown)
    return [*await _find_undescribed(subject, references)] + [
        _report_shown(tool, where, shown)
        for (tool, where), shown in seen.items()
        if len({str(one["reference_answer"]) for one in shown}) >= FEWEST_TASKS
    ]


def _report_shown(tool: str, where: str, shown: Sequence[dict[str, Json]]) -> Finding:
    return Finding(
        rule="data.leak_in_results",
        severity=Severity.WARNING,
        symptom=f"{tool} shows the reference answer of a task, {where}, for example in {shown[0]['call']}.",
        evidence={"tool": tool, "seen": shown[:4]},
        change="Keep the answer only in the task's fields, not in the state or the files that tools read.",
        confirm="No result shows the whole answer under such a name.",
    )


async def _find_undescribed(subject: Subject, references: ReferenceEpisodes) -> list[Finding]:
    """Return findings on record fields that are always the whole answer. The descriptions of the tools that return them
    name other fields, but not these."""
    seen: dict[tuple[str, str], list[tuple[bool, dict[str, Json]]]] = {}
    for reference in references.sampled(subject):
        texts = [to_text(value) for value in (reference.parts or {}).values()]
        survey = await survey_task(subject, reference.task)
        for one in survey.results if len(texts) == 1 and texts[0] else ():
            record = parse_result(one.result.content)
            if one.result.error is None and isinstance(record, Mapping):
                for name in _find_unnamed(record, get_documentation(subject, one.call.tool)):
                    shown: dict[str, Json] = {
                        "task": reference.task.id,
                        "call": str(one.call),
                        "answer": to_text(record)[:300],
                        "reference_answer": texts[0],
                    }
                    seen.setdefault((one.call.tool, name), []).append((to_text(record[name]) == texts[0], shown))
    return [
        _report_undescribed(tool, name, [shown for _, shown in those])
        for (tool, name), those in seen.items()
        if all(is_same for is_same, _ in those)
        and len({str(shown["task"]) for _, shown in those}) > FEWEST_TASKS
        and len({str(shown["reference_answer"]) for _, shown in those}) >= FEWEST_TASKS
    ]


def _report_undescribed(tool: str, name: str, shown: Sequence[dict[str, Json]]) -> Finding:
    return Finding(
        rule="data.leak_in_results",
        severity=Severity.WARNING,
        symptom=f"The field {name!r} in results of {tool} is the reference answer in all {len(shown)} results "
        f"that have it, but the description of {tool} names only the other fields.",
        evidence={"tool": tool, "field": name, "seen": shown[:4]},
        change=f"Leave {name!r} out of the results of {tool}, and keep it only in the task's fields.",
        confirm=f"No result of {tool} has the reference answer in a field that its description does not name.",
    )


def _find_unnamed(record: Mapping[str, Json], text: str) -> list[str]:
    """Return the fields that a description does not mention. The result is empty if the description mentions fewer than
    two fields, or fewer than half of the fields."""
    described = [name for name in record if any(word[:5] in text for word in split_words(str(name)))]
    others = [name for name in record if name not in described]
    return others if len(described) >= max(2, len(others)) else []


async def _collect_results(
    subject: Subject, reference: ReferenceEpisode, reading: Sequence[str], names: Sequence[str]
) -> dict[str, list[tuple[str, str]]]:
    """Return the calls and results of each read-only tool, from the survey and from searches for the names of the
    answer's parts."""
    survey = await survey_task(subject, reference.task)
    found: dict[str, list[tuple[str, str]]] = {}
    for one in survey.results:
        if one.result.error is None:
            found.setdefault(one.call.tool, []).append((str(one.call), one.result.content))
    calls = [
        call
        for tool in reading
        if len(subject.tools[tool].required) == 1
        for text in dict.fromkeys((*_ASKED, *names))
        if subject.problem_with(tool, (call := Call(tool, dict.fromkeys(subject.tools[tool].required, text))).arguments)
        is None
    ]
    results = (
        (await run_calls(subject, reference.task, [*survey.opening, *calls]))[len(survey.opening) :] if calls else []
    )
    for call, result in zip(calls, results, strict=True):
        if result.error is None:
            found.setdefault(call.tool, []).append((str(call), result.content))
    return found


def _find_shown(
    subject: Subject, by_tool: Mapping[str, Sequence[tuple[str, str]]], secret: Mapping[str, str]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the tool, the place of the answer, the call and the result."""
    for tool, results in by_tool.items():
        text = get_documentation(subject, tool)
        is_described = any(word in text for word in _ANSWERS)
        hidden: dict[str, list[tuple[str, str, str]]] = {}
        for call, content in results:
            value = parse_result(content)
            if not is_described and (name := _find_name(value, secret)) is not None:
                yield tool, f"under the name {name!r}", call, content
                break
            for line in (line for leaf in leaves(value) for line in to_text(leaf).splitlines()):
                for match in _HIDDEN.finditer(line):
                    hidden.setdefault(match[1], []).append((line, call, content))
        for name, lines in hidden.items():
            own = [line for line, _, _ in lines]
            stated = [(call, content) for line, call, content in lines if _names_a_part(line, secret)]
            if (
                stated
                and name not in text
                and all(any(_stands_in(value, line) for line in own) for value in secret.values())
            ):
                yield tool, f"from {name!r}, which nothing describes", *stated[0]
                break


def _names_a_part(line: str, secret: Mapping[str, str]) -> bool:
    """Return True if a line has a value of the answer right after the name of its part."""
    return any(
        re.search(rf"\b{re.escape(part)}\b\W{{1,6}}{re.escape(value)}(?!\w)", line)
        for part, value in secret.items()
        if part
    )


def _find_name(value: Json, secret: Mapping[str, str], *, is_inner: bool = False) -> str | None:
    """Return the name, such as `answer`, under which a result contains the whole answer, or None if there is no such
    name. A name at the top level of a small result does not count."""
    if isinstance(value, Mapping):
        for name, item in value.items() if is_inner or len(value) >= _OF_A_RECORD else ():
            text = "\n".join(map(to_text, leaves(item)))
            is_whole = all(_stands_in(one, text) for one in secret.values())
            if set(split_words(str(name))) & _ANSWERS and name not in secret and is_whole:
                return str(name)
    if isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return next((found for item in inner if (found := _find_name(item, secret, is_inner=True)) is not None), None)
    if isinstance(value, str):
        for match in re.finditer(r"\b\w*(?:answer|solution|gold|ground_truth)\w*\b\W{1,8}", value, re.IGNORECASE):
            after = value[match.end() : match.end() + _WINDOW]
            if all(_stands_in(one, after) for one in secret.values()):
                return match[0].strip(" :='\"{[(\\")
    return None


def _stands_in(value: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", text) is not None
