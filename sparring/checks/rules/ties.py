"""Rule on ties: if the task requests the item with the largest or smallest value, the tools must show which item it
is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.returned_rows import parse_number
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import Survey, survey_steady_tools
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

FEWEST_TASKS = 3
SHARE = 0.6
"""Ties for the requested item in at least this share of the tasks are not a coincidence."""
_ASKS_FOR_MOST = re.compile(r"(?i)\b(?:most|least|best|worst|first|last|top|\w{2,}(?:est|iest)|maximum|minimum)\b")
_BREAKS_TIES = re.compile(r"(?i)\b(?:ties?|tied|equal|several|more than one|alphabet\w*|same)\b")
Numbers: TypeAlias = dict[tuple[str, str], dict[str, float]]
"""The number that belongs to each item, keyed by tool and field."""


async def ties(subject: Subject) -> Iterable[Finding]:
    """If a task requests the item with the highest or lowest value, exactly one item has that value.

    In tasks whose prompt requests the highest or the lowest value, the rule compares the numbers that tools return for
    individual items. The rule warns if, in most tasks, another item has the same number as the item that the task's
    fields name, for example after rounding. The answer can then not be determined. Return numbers with the precision
    that the answer needs, or state in the prompt how ties are broken.
    """
    asked = [
        one
        for one in await survey_steady_tools(subject)
        if _ASKS_FOR_MOST.search(prompt := _prompt(one.task)) and not _BREAKS_TIES.search(prompt)
    ]
    shown: dict[tuple[str, str], list[dict[str, Json] | None]] = defaultdict(list)
    for survey in asked:
        answers = {str(value) for value in survey.task.fields.values() if isinstance(value, str | int | float)}
        for key, numbers in _numbers(survey).items():
            if len(numbers) > 2 and len(set(numbers.values())) > 1 and answers & numbers.keys():
                shown[key].append(_tied(survey.task, numbers, answers))
    findings = []
    for (tool, field), seen in shown.items():
        tied = [one for one in seen if one is not None]
        if len(tied) >= FEWEST_TASKS and len(tied) >= SHARE * len(seen):
            findings.append(_report(tool, field, tied, len(seen)))
    return findings


def _report(tool: str, field: str, tied: Sequence[dict[str, Json]], num_tasks: int) -> Finding:
    named = f"the field {field!r} of {tool}" if field else tool
    return Finding(
        rule="environment.ties",
        severity=Severity.WARNING,
        symptom=f"{named} is equal for the requested item and others in {len(tied)} of {num_tasks} "
        f"tasks: {tied[0]['equal']} all have {tied[0]['value']}.",
        evidence={"tool": tool, "field": field, "tasks": tied[:4]},
        change="Return the number without rounding, or state in the prompt which of several equal items counts.",
        confirm=AGAIN,
    )


AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."


def _prompt(task: Task) -> str:
    return "\n".join(get_text(message) for message in task.messages)


def _numbers(survey: Survey) -> Numbers:
    """Return the numbers of individual items: from calls that specify one item, and from rows of lists, keyed by each
    text in the row."""
    found: Numbers = defaultdict(dict)
    for one in survey.found():
        things = [str(value) for value in one.call.arguments.values() if isinstance(value, str)]
        if len(one.call.arguments) == len(things) == 1:
            for field, value in one.fields.items():
                if (number := parse_number(value)) is not None:
                    found[one.call.tool, field][things[0]] = number[0]
        for rows in one.listings.values():
            for field, thing, number in _of_rows(rows):
                found[one.call.tool, field][thing] = number
    return found


def _of_rows(rows: Iterable[Mapping[str, Json]]) -> Iterator[tuple[str, str, float]]:
    for row in rows:
        texts = [value for value in row.values() if isinstance(value, str) and parse_number(value) is None]
        for field, value in row.items():
            if (number := parse_number(value)) is not None and texts:
                yield field, texts[0], number[0]


def _tied(task: Task, numbers: Mapping[str, float], answers: set[str]) -> dict[str, Json] | None:
    """Return the items that share the extreme number with the item named in the task's fields, or None if there are no
    such items."""
    for extreme in (max(numbers.values()), min(numbers.values())):
        equal = sorted(thing for thing, number in numbers.items() if number == extreme)
        if len(equal) > 1 and answers & set(equal):
            return {"task": task.id, "equal": equal, "value": extreme}
    return None
