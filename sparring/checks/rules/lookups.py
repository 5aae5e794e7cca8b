"""Rule on lookups: a tool finds the values that another tool shows, exactly as they are shown, and no others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.legal_calls import run_calls
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import (
    CallResult,
    Survey,
    distinguishes_unknown,
    find_reading_tools,
    get_documentation,
    survey_steady_tools,
)
from sparring.checks.evidence.task_rows import WILDCARDS, find_lookup_faults
from sparring.environments import ToolResult
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
FEWEST = 2
"""The number of values that a tool must find, and the number of values that it must miss, before the rule reports the
tool. A single missed value may be a gap."""
MOST_CHANGED = 3
"""The number of known values that are changed into unknown values in each task."""
_SEARCHES = re.compile(
    r"\b(?:search\w*|contain\w*|begin\w*|start\w*|prefix\w*|match\w*|part\w*|similar|fuzzy|closest|nearest|like|filter\w*|"
    r"case|upper|lower|default\w*|any|or the first|all)\b"
)
_PATTERNS = re.compile(
    r"\b(?:search\w*|contain\w*|begin\w*|start\w*|prefix\w*|match\w*|parts?|similar|fuzzy|closest|nearest|like|filter\w*|"
    r"patterns?|wildcards?|glob\w*|regular|regex\w*|placeholder\w*)\b"
)
_NO_WILDCARD = "~"
_STRIPS = re.compile(r"\b(?:space|blank|strip|trim|white)\w*\b")


@dataclass(slots=True)
class _Looked:
    """The results of one tool for the values that another tool shows under one name."""

    found: list[CallResult] = field(default_factory=list)
    lost: list[tuple[str, CallResult, Call]] = field(default_factory=list)
    """One tuple per missed value: the task, the result of the lookup, and the call that shows the value."""


async def found(subject: Subject) -> Iterable[Finding]:
    """A value that one tool shows can be found with another tool, exactly as it is shown. Unknown values are not found.

    The rule takes every value that a tool shows and passes it to the tools that accept such values. If a tool accepts
    some of them and answers as if the others did not exist, it uses a different spelling, a different range or a
    different set of values. A tool that refuses unknown values is also called with values that no tool shows: a known
    value without its last character, with one more character, with a space, or with a wildcard in place of a character.
    It must not return the data of another value. The rule accepts partial or case-insensitive matches if the
    description announces them.

    If a tool finds rows of the task's own data by some values of a field, the rule also looks up all other values of
    the field. Values with accents, hyphens, underscores and similar characters must also be found. The same applies to
    codes with leading zeros, which a numeric argument cannot express. The result must belong to the requested row. If
    several rows have the same value in the field and the tool returns only one of them, the other rows cannot be found.
    The rule accepts this if the description states that the tool returns the first, the last or any matching row.
    """
    seen: dict[tuple[str, str, str, str], _Looked] = defaultdict(_Looked)
    wrong: dict[str, list[dict[str, Json]]] = defaultdict(list)
    with subject.timing.as_far_as_it_goes():
        reading = await find_reading_tools(subject)
        for survey in await survey_steady_tools(subject):
            for tool in reading:
                for one in survey.results:
                    if one.call.tool == tool and one.call.arguments:
                        _look(subject, survey, one, seen)
                wrong[tool] += await _found_in_vain(subject, survey, tool)
    findings = [
        Finding(
            rule="environment.found",
            severity=Severity.WARNING,
            symptom=f"{tool} does not find {len(looked.lost)} of {len(looked.lost) + len(looked.found)} values that "
            f"{shows} shows"
            + (f" as {name!r}" if name else "")
            + f", for example {_value(looked.lost[0][1], argument)!r}.",
            evidence={
                "tool": tool,
                "shown_by": shows,
                "not_found": [
                    {
                        "task": task,
                        "call": str(result.call),
                        "answer": result.result.content[:200],
                        "shown_by": str(call),
                    }
                    for task, result, call in looked.lost[:4]
                ],
                "found": [str(one.call) for one in looked.found[:3]],
            },
            change="Let both tools read the same rows, and compare values as they are shown.",
            confirm=AGAIN,
        )
        for (shows, name, tool, argument), looked in _worst(seen)
    ]
    return [
        *findings,
        *_answers_in_vain(wrong),
        *await find_lookup_faults(subject, {one.evidence["tool"] for one in findings}),
    ]


def _worst(seen: Mapping[tuple[str, str, str, str], _Looked]) -> Iterator[tuple[tuple[str, str, str, str], _Looked]]:
    """Yield, for each tool, the other tool whose values it most often fails to find, with the results."""
    named: set[str] = set()
    for key, looked in sorted(seen.items(), key=lambda one: -len(one[1].found)):
        shows, _, tool, argument = key
        values = {_value(one, argument) for one in looked.found}
        lost = {_value(result, argument) for _, result, _ in looked.lost}
        is_shared = len(values) >= FEWEST and len(values) >= len(lost - values)
        if tool not in named and lost - values and len(looked.lost) >= FEWEST and is_shared and shows != tool:
            named.add(tool)
            yield key, looked


def _value(result: CallResult, argument: str) -> Json:
    return result.call.arguments.get(argument)


def _look(subject: Subject, survey: Survey, one: CallResult, seen: dict[tuple[str, str, str, str], _Looked]) -> None:
    """Record whether a call found the value of its one varied argument, and which call shows that value."""
    required = subject.tools[one.call.tool].required
    if len(one.call.arguments) != 1 or set(one.call.arguments) != set(required) or one.call.tool not in survey.unknown:
        return
    ((argument, value),) = one.call.arguments.items()
    if isinstance(value, bool | list | dict) or value is None or not distinguishes_unknown(survey, one.call.tool):
        return
    for other in survey.found():
        if other.call.tool == one.call.tool:
            continue
        for name, values in _columns(other).items():
            if value in values and (
                not isinstance(value, int | float) or set(split_words(argument)) & set(split_words(name))
            ):
                looked = seen[other.call.tool, name, one.call.tool, argument]
                if not survey.is_unknown(one):
                    looked.found.append(one)
                elif all(result is not one for _, result, _ in looked.lost):
                    looked.lost.append((survey.task.id, one, other.call))


def _columns(result: CallResult) -> dict[str, list[Json]]:
    """Return the values of the rows that a call returned, keyed by column. For a list of scalars, the column is the
    name of the list."""
    found: dict[str, list[Json]] = defaultdict(list)
    for listing, rows in result.listings.items():
        for row in rows:
            for name, value in row.items():
                found[name or listing].append(value)
    return found


async def _found_in_vain(subject: Subject, survey: Survey, tool: str) -> list[dict[str, Json]]:
    """Return the evidence on unknown values whose results belong to another value."""
    text = get_documentation(subject, tool)
    if not distinguishes_unknown(survey, tool) or _PATTERNS.search(text):
        return []
    right = _find_by_value(survey, tool)
    contents = [one.result.content for one in right.values()]
    own = {key: one for key, one in right.items() if contents.count(one.result.content) == 1 and len(key) > 1}
    if len(own) < FEWEST:
        return []
    changed = [
        (key, Call(tool, {name: other}))
        for key, one in list(own.items())[:MOST_CHANGED]
        for name, value in one.call.arguments.items()
        for other in (*(() if _SEARCHES.search(text) else _changed(value, text)), *_with_wildcards(value))
        if str(other) not in right and subject.problem_with(tool, {name: other}) is None
    ]
    results = (await run_calls(subject, survey.task, [*survey.opening, *(call for _, call in changed)]))[
        len(survey.opening) :
    ]
    belongs = {one.result.content: key for key, one in own.items()}
    fuzzy = _find_fuzzy(changed, results, belongs)
    return [
        _show_in_vain(survey.task, call, result, belongs[result.content])
        for (key, call), result in zip(changed, results, strict=True)
        if (belongs.get(result.content) == key and key not in fuzzy)
        or (result.content in belongs and not any(call.arguments.values()))
    ]


def _find_by_value(survey: Survey, tool: str) -> dict[str, CallResult]:
    """Return the results of calls with a single text or number, keyed by this value."""
    return {
        str(next(iter(one.call.arguments.values()))): one
        for one in survey.found(tool)
        if len(one.call.arguments) == 1 and isinstance(next(iter(one.call.arguments.values())), str | int)
    }


def _find_fuzzy(
    changed: Sequence[tuple[str, Call]], results: Sequence[ToolResult], belongs: Mapping[str, str]
) -> set[str]:
    """Return the values that are also found with any other character in place of the right one. Such a tool has no
    wildcards: it finds similar values."""
    return {
        key
        for (key, call), result in zip(changed, results, strict=True)
        if belongs.get(result.content) == key and any(_NO_WILDCARD in str(one) for one in call.arguments.values())
    }


def _show_in_vain(task: Task, call: Call, result: ToolResult, owner: str) -> dict[str, Json]:
    return {
        "task": task.id,
        "call": str(call),
        "answer": result.content[:200],
        "belongs_to": owner,
    }


def _with_wildcards(value: Json) -> Iterator[str]:
    """Yield a known text with a wildcard in place of a letter or a digit in its middle."""
    if isinstance(value, str) and len(value) > 2:
        place = next((place for place in range(len(value) // 2, len(value)) if value[place].isalnum()), None)
        if place is not None:
            yield from (f"{value[:place]}{wildcard}{value[place + 1 :]}" for wildcard in (*WILDCARDS, _NO_WILDCARD))


def _wildcard_in(seen: Mapping[str, Json]) -> str:
    """Return the wildcard with which a call found another value, or "" if there is none."""
    own = str(seen["belongs_to"])
    return next((mark for mark in WILDCARDS if str(seen["call"]).split("=", 1)[1].count(mark) > own.count(mark)), "")


def _changed(value: Json, text: str) -> Iterator[Json]:
    """Yield values that are nearly equal to a known value."""
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield from (0, -value, value + 1_000_000)
    elif isinstance(value, str):
        yield from (value[:-1], value[:1], value[1:], f"{value}x", "")
        if not _STRIPS.search(text):
            yield value[len(value) // 2 :]


def _answers_in_vain(wrong: Mapping[str, Sequence[dict[str, Json]]]) -> Iterator[Finding]:
    for tool, seen in wrong.items():
        if len(seen) >= FEWEST:
            yield Finding(
                rule="environment.found",
                severity=Severity.WARNING,
                symptom=f"{tool} returns the result of another value for an unknown value: {seen[0]['call']} returns "
                f"the result of {seen[0]['belongs_to']!r}"
                + (f", as if {wildcard!r} stood for any character." if (wildcard := _wildcard_in(seen[0])) else "."),
                evidence={"tool": tool, "seen": list(seen[:4])},
                change="Compare whole values, and return an error for a value that does not exist.",
                confirm=AGAIN,
            )
