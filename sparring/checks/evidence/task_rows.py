"""Lookups of the task's own rows: a tool that finds some rows by a field must find all rows by it, and must return the
correct row."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sparring.checks.evidence.arguments import fit_to_schema
from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.legal_calls import SLOW_SECONDS, run_calls
from sparring.checks.evidence.own_data import unpack
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import (
    CallResult,
    Survey,
    distinguishes_unknown,
    find_reading_tools,
    survey_steady_tools,
)
from sparring.findings import Finding, Severity
from sparring.types import Json

WILDCARDS = "_%*?."
MOST_ROWS = 40
"""The maximum number of rows of one list to look up in one task."""
FEWEST_FOUND = 3
FEWEST_WRONG = 2
_ROWS_OF_A_LIST = 3
_MOSTLY = 0.6
"""A field may identify rows if at least this share of its values is distinct."""
_ONE_OF_SEVERAL = re.compile(
    r"\b(?:first|last|latest|newest|oldest|earliest|recent|current|any|some|best|next|nearest)\b", re.I
)
Row: TypeAlias = Mapping[str, Json]
Place: TypeAlias = tuple[tuple[str, ...], str]
"""The path of rows in the task's fields, and the name of a field of a row."""

_SPELLINGS: Mapping[str, Callable[[str], bool]] = {
    "accents": lambda text: any(map(unicodedata.combining, unicodedata.normalize("NFKD", text))),
    "letters outside ASCII": lambda text: not text.isascii(),
    "upper case": lambda text: text != text.lower(),
    "lower case": lambda text: text != text.upper(),
    "a leading zero": lambda text: text.startswith("0"),
    "a leading or trailing space": lambda text: text != text.strip(),
    "a space": lambda text: " " in text.strip(),
    **{f"the character {mark!r}": lambda text, mark=mark: mark in text for mark in "'’-_./&,+#%:()"},
}
"""Features that may explain why values are not found, if all of these values and no found value have the feature."""


@dataclass(slots=True)
class _Asked:
    """The results of looking up the values of one field with a tool."""

    found: dict[str, str] = field(default_factory=dict)
    """The task of each value that was found."""
    lost: dict[str, dict[str, Json]] = field(default_factory=dict)
    """Evidence for each value that was not found."""
    right: Counter[tuple[str, str]] = field(default_factory=Counter)
    """For each pair of a result's field and a row's field, the number of results whose value identifies the requested
    row."""
    wrong: dict[tuple[str, str], list[dict[str, Json]]] = field(default_factory=lambda: defaultdict(list))
    """For each pair of these fields, evidence of results whose value identifies another row."""
    neither: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of these fields for which the value of at least one result does not identify exactly one row, or the row's
    field has the value that was looked up."""
    hidden: dict[tuple[str, str], list[dict[str, Json]]] = field(default_factory=lambda: defaultdict(list))
    """For each pair of these fields, evidence of results whose value only some of the rows with the same name have."""


async def find_lookup_faults(subject: Subject, known: Collection[Json]) -> list[Finding]:
    """Return findings on tools that do not find rows because of their spelling, return a different row, or return only
    one of two rows with the same name. The tools in `known` are left out."""
    asked: dict[tuple[str, Place], _Asked] = defaultdict(_Asked)
    if subject.timing.episode_seconds > SLOW_SECONDS:
        return []
    for survey in await survey_steady_tools(subject):
        for tool in await find_reading_tools(subject):
            if tool not in known and len(subject.tools[tool].required) == 1 and distinguishes_unknown(survey, tool):
                await _ask_all(subject, survey, tool, asked)
    findings: dict[str, Finding] = {}
    for (tool, (_, name)), one in asked.items():
        finding = (
            _report_lost(tool, name, one)
            or _report_mixed_up(tool, name, one)
            or _report_hidden(subject, tool, name, one)
        )
        if finding is not None:
            findings.setdefault(tool, finding)
    return list(findings.values())


async def _ask_all(subject: Subject, survey: Survey, tool: str, asked: dict[tuple[str, Place], _Asked]) -> None:
    """Look up all values of each field by which a tool finds some rows."""
    (argument,) = subject.tools[tool].required
    schema = subject.tools[tool].schema["function"]["parameters"]["properties"].get(argument, {})
    is_text = subject.problem_with(tool, {argument: "text"}) is None
    known = {str(one.call.arguments[argument]) for one in survey.found(tool) if list(one.call.arguments) == [argument]}
    for path, rows in find_tables(unpack(survey.task.fields)):
        for name in _find_identifying(rows):
            values = {str(row[name]): row for row in rows[:MOST_ROWS]}
            # A number has no leading zeros: `0417` can only be passed as 417.
            calls = [Call(tool, {argument: value if is_text else fit_to_schema(value, schema)}) for value in values]
            if len(values.keys() & known) < FEWEST_WRONG or any(
                subject.problem_with(tool, call.arguments) is not None for call in calls
            ):
                continue
            results = (await run_calls(subject, survey.task, [*survey.opening, *calls]))[len(survey.opening) :]
            one = asked[tool, (path, name)]
            for (value, row), call, result in zip(values.items(), calls, results, strict=True):
                alike = [other for other in rows if str(other[name]) == value]
                if len(alike) > 1:
                    _note_hidden(survey, one, alike, value, CallResult(call, result))
                else:
                    _note(survey, one, rows, row, value, CallResult(call, result))


def _note_hidden(survey: Survey, one: _Asked, alike: Sequence[Row], value: str, result: CallResult) -> None:
    """Record which of several rows with the same name a result shows."""
    if survey.is_unknown(result):
        return
    for key, stated in result.fields.items():
        for name in alike[0]:
            others = [row for row in alike if str(row.get(name)) != str(stated)]
            if str(stated) != value and 0 < len(others) < len(alike):
                one.hidden[key, name].append(
                    {
                        "task": survey.task.id,
                        "call": str(result.call),
                        "answer": result.result.content[:200],
                        "not_found": dict(others[0]),
                    }
                )


def _note(survey: Survey, one: _Asked, rows: Sequence[Row], row: Row, value: str, result: CallResult) -> None:
    shown: dict[str, Json] = {"task": survey.task.id, "call": str(result.call), "answer": result.result.content[:200]}
    if survey.is_unknown(result):
        one.lost.setdefault(value, shown)
        return
    one.found.setdefault(value, survey.task.id)
    for key, stated in result.fields.items():
        for name, own in row.items():
            owners = [other for other in rows if str(other.get(name)) == str(stated)]
            if len(owners) != 1 or str(own) == value:
                one.neither.add((key, name))
            elif owners[0] is row:
                one.right[key, name] += 1
            else:
                one.wrong[key, name].append({**shown, "row_asked_for": dict(row), "row_of_the_answer": dict(owners[0])})


def _report_lost(tool: str, name: str, one: _Asked) -> Finding | None:
    """Return a finding on rows that are not found because of their spelling."""
    lost = {value: shown for value, shown in one.lost.items() if value not in one.found}
    what = find_common_feature(list(lost), list(one.found)) if _are_of_a_kind(one.found, lost) else None
    if what is None or len(lost) < FEWEST_WRONG or len(one.found) < FEWEST_FOUND:
        return None
    return _make_finding(
        f"{tool} does not find {len(lost)} of {len(lost) + len(one.found)} values of the task's {name or 'names'!r}, "
        f"all of them with {what}, for example {next(iter(lost))!r}.",
        {"tool": tool, "not_found": list(lost.values())[:4], "found": list(one.found)[:4]},
        "Compare requested and stored values in the same spelling. Codes are texts, since numbers have no leading "
        "zeros.",
    )


def find_common_feature(texts: Sequence[str], others: Sequence[str]) -> str | None:
    """Return a feature that all of these texts have and none of the others, or None if there is none."""
    return next((what for what, has in _SPELLINGS.items() if all(map(has, texts)) and not any(map(has, others))), None)


def _are_of_a_kind(found: Iterable[str], lost: Iterable[str]) -> bool:
    """Return True if both groups are names, or both are codes. A code and a name may need different tools."""
    return {any(map(str.isdigit, one)) for one in found} == {any(map(str.isdigit, one)) for one in lost}


def _report_mixed_up(tool: str, name: str, one: _Asked) -> Finding | None:
    """Return a finding on values for which the tool returns a different row."""
    for key, wrong in one.wrong.items():
        is_sure = key not in one.neither and one.right[key] >= FEWEST_FOUND
        if is_sure and FEWEST_WRONG <= len(wrong) < one.right[key]:
            marks = [mark for mark in WILDCARDS if all(mark in str(shown["call"]).split("=", 1)[1] for shown in wrong)]
            return _make_finding(
                f"{tool} returns another row for {len(wrong)} of {len(wrong) + one.right[key]} values of "
                f"{name or 'names'!r}, "
                f"for example for {wrong[0]['call']}"
                + (f": all of these values contain {marks[0]!r}, a search wildcard." if marks else "."),
                {"tool": tool, "wrong": list(wrong[:4]), "field": list(key)},
                "Compare whole values exactly, and return the row that has the value.",
            )
    return None


def _report_hidden(subject: Subject, tool: str, name: str, one: _Asked) -> Finding | None:
    """Return a finding on rows that cannot be found, since another row has the same name."""
    description = str(subject.tools[tool].schema["function"].get("description", ""))
    for key, hidden in () if _ONE_OF_SEVERAL.search(description) else one.hidden.items():
        is_sure = key not in one.neither and not one.wrong.get(key) and one.right[key] >= FEWEST_FOUND
        if is_sure and len(hidden) >= FEWEST_WRONG:
            return _make_finding(
                f"{tool} finds only one of several rows with the same {name or 'name'!r} in {len(hidden)} "
                f"calls: {hidden[0]['call']} in task {hidden[0]['task']}.",
                {"tool": tool, "seen": hidden[:4], "field": list(key)},
                "Give each row of a task its own name, or return all rows that have the name.",
            )
    return None


def _make_finding(symptom: str, evidence: dict[str, Json], change: str) -> Finding:
    return Finding(
        rule="environment.found",
        severity=Severity.WARNING,
        symptom=symptom,
        evidence=evidence,
        change=change,
        confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
    )


def find_tables(value: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """Yield the lists of rows in a task's fields with their paths. The values of an object also count as rows."""
    if isinstance(value, Mapping):
        if len(value) >= _ROWS_OF_A_LIST and path and _are_alike(list(value.values())):
            yield path, [{"": key, **_row(one)} for key, one in value.items()]
        for name, item in value.items():
            yield from find_tables(item, (*path, str(name)))
    elif isinstance(value, list | tuple) and len(value) >= _ROWS_OF_A_LIST and _are_alike(value):
        yield path, [_row(one) for one in value]


def _are_alike(values: Sequence[Json]) -> bool:
    """Return True if values are objects with a shared field, lists of one length, or texts."""
    if all(isinstance(one, Mapping) for one in values):
        return bool(set.intersection(*(set(one) for one in values if isinstance(one, Mapping))))
    if all(isinstance(one, list | tuple) for one in values):
        return len({len(one) for one in values if isinstance(one, list | tuple)}) == 1
    return all(isinstance(one, str) for one in values)


def _row(value: Json) -> dict[str, Json]:
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items() if isinstance(one, str | int | float)}
    if isinstance(value, list | tuple):
        return {str(index): one for index, one in enumerate(value) if isinstance(one, str | int | float)}
    return {"value": value}


def _find_identifying(rows: Sequence[Row]) -> list[str]:
    """Return the fields that contain a text in every row, and distinct texts in most rows."""
    names = rows[0]
    return [
        name
        for name in names
        if all(isinstance(row.get(name), str) and row[name] for row in rows)
        and len({row[name] for row in rows}) >= _MOSTLY * len(rows)
    ]
