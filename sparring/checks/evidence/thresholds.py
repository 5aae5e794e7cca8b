"""Limits in the prompt, compared with the labels of tasks whose number equals the limit."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.readable_values import ReadableValues
from sparring.checks.evidence.reference_episodes import ReferenceEpisodes
from sparring.checks.evidence.returned_rows import parse_number
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.task_rows import find_tables
from sparring.findings import Finding, Severity
from sparring.types import Json

FEWEST_AT = 2
"""The minimum number of tasks with exactly the number of a limit before their labels are compared."""
FEWEST_ADJACENT = 2
"""The minimum number of tasks on each side of the limit with a label that only this side has."""
FEWEST_IN_ALL = 6
"""The minimum number of tasks with a label that only their side has, on both sides together."""
MOST_LABELS = 8
_NUMBER = r"(?:[€$£] ?)?(\d+(?:,\d{3})*(?:\.\d+)?)"
_MORE = "more|above|over|older|higher|longer|later"
_LESS = "less|fewer|below|under|younger|lower|shorter|earlier"
_BELOW = re.compile(
    rf"\b(?:(?:{_MORE}|greater|heavier|larger|exceed\w*)(?: than)?|at most|up to|within|maximum of) {_NUMBER}"
    rf"|{_NUMBER}(?: [a-z]+)? or (?:{_LESS})\b",
    re.I,
)
"""Limits whose own number belongs to the lower side."""
_ABOVE = re.compile(
    rf"\b(?:(?:{_LESS}|lighter|smaller)(?: than)?|at least|minimum of|from) {_NUMBER}"
    rf"|{_NUMBER}(?: [a-z]+)? (?:or|and) (?:{_MORE})\b",
    re.I,
)
"""Limits whose own number belongs to the upper side."""


def find_broken_limits(
    subject: Subject, references: ReferenceEpisodes, reads: Sequence[ReadableValues]
) -> Iterator[Finding]:
    """Yield findings on tasks at a limit whose label otherwise occurs only on the other side of the limit."""
    text = " ".join(get_text(message) for message in reads[0].task.messages) if reads else ""
    limits = _find_limits(text)
    numbers = {read.task.id: dict(_collect_numbers(read)) for read in reads} if limits else {}
    for part, values in references.labels().items():
        if not limits or not 1 < len(set(map(str, values))) <= MOST_LABELS:
            continue
        labels = {name: str((reference.parts or {}).get(part)) for name, reference in references.by_task.items()}
        for number, (is_upper, phrase) in limits.items():
            wrong = _find_wrong(numbers, labels, number, is_upper)
            if wrong is not None:
                name, tasks, label = wrong
                evidence = {
                    "limit": phrase,
                    "value": name,
                    "tasks": tasks[:6],
                    "reference_answer": label,
                    "part": part,
                }
                yield _report_wrong(number, evidence, len(tasks), is_upper=is_upper)
                break


def _report_wrong(number: float, evidence: Mapping[str, Json], num_tasks: int, *, is_upper: bool) -> Finding:
    return Finding(
        rule="data.labels",
        severity=Severity.WARNING,
        symptom=f"The prompt states {evidence['limit']!r}, but {num_tasks} tasks with exactly {number:g} as "
        f"{evidence['value']} have the reference answer of tasks with {'less' if is_upper else 'more'}: "
        f"{evidence['reference_answer']!r}.",
        evidence=evidence,
        change=f"Correct the reference answers at exactly {number:g}, or the words of the prompt.",
        confirm="Tasks at the limit have the answer that follows from the prompt's words.",
    )


def _find_limits(text: str) -> dict[float, tuple[bool, str]]:
    """Return for each limit whether its number belongs to the upper side, and the words that state it. Numbers that
    some words assign to the upper side and others to the lower side are left out. `no more than 5` divides the numbers
    in the same way as `more than 5`."""
    found: dict[float, set[tuple[bool, str]]] = defaultdict(set)
    for pattern, is_upper in ((_BELOW, False), (_ABOVE, True)):
        for match in pattern.finditer(text):
            number = next(group for group in match.groups() if group)
            found[float(number.replace(",", ""))].add((is_upper, match[0]))
    return {number: min(phrase) for number, phrase in found.items() if len({side for side, _ in phrase}) == 1}


def _collect_numbers(read: ReadableValues) -> Iterator[tuple[str, float]]:
    """Yield the named numbers of a task, from the task's fields, its prompt, its own row, and the results of tools."""
    for (place, name), value in read.values.items():
        if place != "answer" and (number := parse_number(value)) is not None:
            yield (name if place == "field" else f"what follows {name.rpartition(' ')[0]!r}"), number[0]
    for name, value in _find_own_row(read).items():
        if not isinstance(value, bool) and (number := parse_number(value)) is not None:
            yield name, number[0]
    for (tool, _), name, _, value in read.scalars():
        if not isinstance(value, bool) and (number := parse_number(value)) is not None:
            yield (f"{name} of {tool}" if name else tool), number[0]


def _find_own_row(read: ReadableValues) -> Mapping[str, Json]:
    """Return the only row of the task's data that the prompt or a field identifies by a value that no other row has, or
    an empty mapping."""
    named = {value for (place, _), value in read.values.items() if place != "answer" and len(value) > 1}
    for _, rows in find_tables(read.task.fields):
        seen = Counter(str(one) for row in rows for one in row.values())
        own = [row for row in rows if any(str(one) in named and seen[str(one)] == 1 for one in row.values())]
        if len(own) == 1:
            return own[0]
    return {}


def _find_wrong(
    numbers: Mapping[str, Mapping[str, float]], labels: Mapping[str, str], limit: float, is_upper: bool
) -> tuple[str, list[str], str] | None:
    """Return the name of a number for which the labels change at a limit, the tasks at the limit that have the label of
    the wrong side, and this label. Return None if there are no such tasks."""
    for name in dict.fromkeys(name for own in numbers.values() for name in own):
        known = {task: own[name] for task, own in numbers.items() if name in own and task in labels}
        sides = [
            Counter(labels[task] for task, one in known.items() if side(one)) for side in (limit.__gt__, limit.__lt__)
        ]
        below, above = ({label for label in sides[place] if label not in sides[1 - place]} for place in (0, 1))
        counts = [sum(side[one] for one in only) for side, only in zip(sides, (below, above), strict=True)]
        if min(counts) < FEWEST_ADJACENT or sum(counts) < FEWEST_IN_ALL:
            continue
        at = {task: labels[task] for task, one in known.items() if one == limit}
        right, other = (above, below) if is_upper else (below, above)
        wrong = [task for task, label in at.items() if label in other]
        if len(wrong) >= FEWEST_AT and not any(label in right for label in at.values()):
            return name, wrong, at[wrong[0]]
    return None
