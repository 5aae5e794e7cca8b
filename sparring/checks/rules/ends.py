"""Rule on ends: tools must return the first and the last item of a list, and the values at both ends of a range."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sparring.checks.evidence.arguments import fit_to_schema, split_words
from sparring.checks.evidence.explore import Call, explore_task, is_nothing, is_refusal
from sparring.checks.evidence.legal_calls import SLOW_SECONDS, leaves, run_calls
from sparring.checks.evidence.returned_rows import parse_result
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import Survey, find_reading_tools, get_documentation, survey_steady_tools
from sparring.checks.evidence.task_rows import Row, find_tables
from sparring.environments import ToolResult
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

FEWEST_TASKS = 2
FEWEST_ROWS = 3
MOST_ROWS = 24
"""The maximum number of rows of a list whose items are requested by number."""
MOST_RANGES = 4
"""The maximum number of values of one column that are tried in one task."""
LOW = {"min", "minimum", "from", "since", "start", "begin", "first", "earliest", "low", "lower"}
HIGH = {"max", "maximum", "to", "until", "end", "till", "last", "latest", "high", "upper"}
_EXCLUDED = re.compile(
    r"exclu|before|half.open|not includ|nights?\b|arriv|depart|check.?(?:in|out)|more than|less "
    r"than|over\b|under\b|above|below"
)


@dataclass(slots=True)
class _Ends:
    """The tasks in which a tool returns the items at the ends, and the tasks in which it does not."""

    kept: set[str] = field(default_factory=set)
    lost: dict[str, dict[str, Json]] = field(default_factory=dict)
    what: str = ""


async def ends(subject: Subject) -> Iterable[Finding]:
    """Items that are requested by number are available from the first to the last, and a range includes both ends.

    If a tool takes a number and returns an item from one of the task's lists, the rule calls it for every item. It
    warns if the first or the last item is not returned. A tool with a lower and an upper limit is called with a range
    from a value of the task's data to the same value. The rule warns if this range returns nothing although a range to
    the next value does, and no description excludes an end.
    """
    if subject.timing.episode_seconds > SLOW_SECONDS:
        return []
    seen: dict[str, _Ends] = {}
    with subject.timing.as_far_as_it_goes():
        reading = await find_reading_tools(subject)
        for survey in await survey_steady_tools(subject):
            for tool in reading:
                one = seen.setdefault(tool, _Ends())
                await _by_number(subject, survey, tool, one)
                await _ranges(subject, survey, tool, one)
    return [
        Finding(
            rule="environment.ends",
            severity=Severity.WARNING,
            symptom=f"{tool}: {one.what}, in {len(one.lost)} tasks.",
            evidence={"tool": tool, "seen": [{"task": task, **shown} for task, shown in list(one.lost.items())[:4]]},
            change="Start to count at the number in the description. Compare with <= if an end belongs to the range, or "
            "state that it does not.",
            confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
        )
        for tool, one in seen.items()
        if len(one.lost) >= min(FEWEST_TASKS, len(subject.sample)) and not one.kept
    ]


def _parts(subject: Subject, tool: str) -> Mapping[str, Mapping[str, Json]]:
    return subject.tools[tool].schema["function"].get("parameters", {}).get("properties", {})


async def _asked(subject: Subject, survey: Survey, calls: Sequence[Call]) -> list[ToolResult]:
    return (await run_calls(subject, survey.task, [*survey.opening, *calls]))[len(survey.opening) :]


async def _by_number(subject: Subject, survey: Survey, tool: str, one: _Ends) -> None:
    """Record whether each item of a list can be requested by its number."""
    parts = _parts(subject, tool)
    if len(parts) != 1 or next(iter(parts.values())).get("type") != "integer":
        return
    (name,) = parts
    lists = [
        rows
        for _, rows in find_tables(survey.task.fields)
        if FEWEST_ROWS <= len(rows) <= MOST_ROWS and "" not in rows[0]
    ]
    most = max(map(len, lists), default=0)
    calls = [Call(tool, {name: n}) for n in range(-1, most + 2) if subject.problem_with(tool, {name: n}) is None]
    results = await _asked(subject, survey, calls) if calls and lists else []
    for rows in lists:
        found = {
            int(call.arguments[name]): place
            for call, result in zip(calls, results, strict=True)
            if call.arguments[name] >= 0 and not is_refusal(result) and (place := _only_row(rows, result)) is not None
        }
        shifts = {place - number for number, place in found.items()}
        if len(shifts) != 1 or len(found) < max(FEWEST_ROWS - 1, len(rows) - 1):
            continue
        missing = set(range(len(rows))) - set(found.values())
        if missing and missing <= {0, len(rows) - 1}:
            place = missing.pop()
            one.what = f"no number returns the {'last' if place else 'first'} item of a list"
            numbers: list[Json] = [*found]
            one.lost[survey.task.id] = {"item": dict(rows[place]), "numbers_that_find_others": numbers}
        elif not missing:
            one.kept.add(survey.task.id)


def _only_row(rows: Sequence[Row], result: ToolResult) -> int | None:
    """Return the index of the row if the result contains a value that is unique to this row. Return None if it contains
    such values of no row or of several rows."""
    shown = {str(value) for _, value in leaves(parse_result(result.content))}
    every = [str(value) for row in rows for value in row.values()]
    places = [
        i for i, row in enumerate(rows) if any(str(v) in shown and every.count(str(v)) == 1 for v in row.values())
    ]
    return places[0] if len(places) == 1 else None


async def _ranges(subject: Subject, survey: Survey, tool: str, one: _Ends) -> None:
    """Record whether a range includes its ends."""
    parts = _parts(subject, tool)
    low, high = ([name for name in parts if marks & set(split_words(name))] for marks in (LOW, HIGH))
    legal = (await explore_task(subject, survey.task)).legal(tool)
    if (
        len(low) != 1
        or len(high) != 1
        or not legal
        or low == high
        or _EXCLUDED.search(get_documentation(subject, tool))
    ):
        return
    fixed = {name: legal[0].call.arguments.get(name) for name in subject.tools[tool].required}
    for values in _columns(survey, parts[low[0]]):
        pairs = list(pairwise(values))[:MOST_RANGES]
        calls = [
            Call(tool, {**fixed, low[0]: begin, high[0]: end})
            for begin, following in pairs
            for end in (begin, following)
        ]
        if len(pairs) < 2 or any(subject.problem_with(tool, call.arguments) is not None for call in calls):
            continue
        results = await _asked(subject, survey, calls)
        if any(map(is_refusal, results)):
            continue
        _record_range(survey.task, calls, results, one)


def _record_range(task: Task, calls: Sequence[Call], results: Sequence[ToolResult], one: _Ends) -> None:
    """Record the results of pairs of calls: from a value to itself, and to the next value."""
    alone, wider = [_is_empty(result) for result in results[::2]], [_is_empty(result) for result in results[1::2]]
    if not all(alone):
        one.kept.add(task.id)
    elif not any(wider):
        one.what = "a range from a value to itself is empty, but a range to the next value is not"
        one.lost[task.id] = {
            "call": str(calls[0]),
            "answer": results[0].content[:200],
            "with_the_next_value": str(calls[1]),
            "answer_there": results[1].content[:200],
        }


def _columns(survey: Survey, part: Mapping[str, Json]) -> Iterator[list[Json]]:
    """Yield, for each column of the task's data, its distinct values in sorted order, if they fit an argument and can
    be compared."""
    for _, rows in find_tables(survey.task.fields):
        for name in dict.fromkeys(key for row in rows for key in row):
            values = [fit_to_schema(row[name], part) for row in rows if name in row]
            is_date = all(re.match(r"\d{4}-\d\d-\d\d|\d\d:\d\d", str(value)) for value in values)
            if None not in values and (is_date or all(isinstance(value, int | float) for value in values)):
                yield sorted(set(values))  # type: ignore[type-var]


def _is_empty(result: ToolResult) -> bool:
    value = parse_result(result.content)
    return is_nothing(result.content) or all(leaf in (0, "", None, False) for _, leaf in leaves(value))
