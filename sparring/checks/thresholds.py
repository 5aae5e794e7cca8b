"""Limits that the prompt names, against the labels of tasks that have just that number."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sparring.checks.answers import text_of
from sparring.checks.golds import Golds
from sparring.checks.own_rows import tables
from sparring.checks.rows import number_of
from sparring.checks.sources import Read
from sparring.checks.subject import Subject
from sparring.findings import Finding, Severity
from sparring.types import Json

FEWEST_AT = 2
"""Tasks with just the number of a limit, before their labels are compared."""
FEWEST_BESIDE = 2
"""Tasks on each side of the limit with a label that only this side has."""
FEWEST_IN_ALL = 6
"""Such tasks on both sides."""
MOST_LABELS = 8
_NUMBER = r"(?:[€$£] ?)?(\d+(?:,\d{3})*(?:\.\d+)?)"
_MORE = "more|above|over|older|higher|longer|later"
_LESS = "less|fewer|below|under|younger|lower|shorter|earlier"
_BELOW = re.compile(
    rf"\b(?:(?:{_MORE}|greater|heavier|larger|exceed\w*)(?: than)?|at most|up to|within|maximum of) {_NUMBER}"
    rf"|{_NUMBER}(?: [a-z]+)? or (?:{_LESS})\b",
    re.I,
)
"""Limits whose own number is on the lower side."""
_ABOVE = re.compile(
    rf"\b(?:(?:{_LESS}|lighter|smaller)(?: than)?|at least|minimum of|from) {_NUMBER}"
    rf"|{_NUMBER}(?: [a-z]+)? (?:or|and) (?:{_MORE})\b",
    re.I,
)
"""Limits whose own number is on the upper side."""


def broken_limits(subject: Subject, golds: Golds, reads: Sequence[Read]) -> Iterator[Finding]:
    """Labels of tasks at a limit that only tasks on its other side have."""
    text = " ".join(text_of(message) for message in reads[0].task.messages) if reads else ""
    limits = _limits(text)
    numbers = {read.task.id: dict(_numbers(read)) for read in reads} if limits else {}
    for part, values in golds.labels().items():
        if not limits or not 1 < len(set(map(str, values))) <= MOST_LABELS:
            continue
        labels = {name: str((gold.parts or {}).get(part)) for name, gold in golds.by_task.items()}
        for number, (is_upper, said) in limits.items():
            wrong = _wrong(numbers, labels, number, is_upper)
            if wrong is not None:
                name, tasks, label = wrong
                yield Finding(
                    rule="data.labels",
                    severity=Severity.WARNING,
                    symptom=f"The prompt says {said!r}, and the reference answers of {len(tasks)} tasks with just {number:g} as "
                    f"{name} are those of tasks with {'less' if is_upper else 'more'}: {label!r}.",
                    evidence={
                        "limit": said,
                        "value": name,
                        "tasks": tasks[:6],
                        "reference_answer": label,
                        "part": part,
                    },
                    change=f"Put right what decides at just {number:g} in the reference answers, or the words of the prompt.",
                    confirm="Tasks at the limit have the answer that the prompt's words give.",
                )
                break


def _limits(text: str) -> dict[float, tuple[bool, str]]:
    """Each number of a limit, whether it is on the upper side itself, and the words; without those that are said in both ways.
    `no more than 5` divides as `more than 5` does."""
    found: dict[float, set[tuple[bool, str]]] = defaultdict(set)
    for pattern, is_upper in ((_BELOW, False), (_ABOVE, True)):
        for match in pattern.finditer(text):
            number = next(group for group in match.groups() if group)
            found[float(number.replace(",", ""))].add((is_upper, match[0]))
    return {number: min(said) for number, said in found.items() if len({side for side, _ in said}) == 1}


def _numbers(read: Read) -> Iterator[tuple[str, float]]:
    """The numbers of a task by name: its own, those in its prompt, those of its own row, and what tools say."""
    for (place, name), value in read.values.items():
        if place != "answer" and (number := number_of(value)) is not None:
            yield (name if place == "field" else f"what follows {name.rpartition(' ')[0]!r}"), number[0]
    for name, value in _own_row(read).items():
        if not isinstance(value, bool) and (number := number_of(value)) is not None:
            yield name, number[0]
    for (tool, _), name, _, value in read.scalars():
        if not isinstance(value, bool) and (number := number_of(value)) is not None:
            yield (f"{name} of {tool}" if name else tool), number[0]


def _own_row(read: Read) -> Mapping[str, Json]:
    """The one row of the task's data that its prompt or a field names, by a value that no other row has."""
    named = {value for (place, _), value in read.values.items() if place != "answer" and len(value) > 1}
    for _, rows in tables(read.task.fields):
        seen = Counter(str(one) for row in rows for one in row.values())
        own = [row for row in rows if any(str(one) in named and seen[str(one)] == 1 for one in row.values())]
        if len(own) == 1:
            return own[0]
    return {}


def _wrong(
    numbers: Mapping[str, Mapping[str, float]], labels: Mapping[str, str], limit: float, is_upper: bool
) -> tuple[str, list[str], str] | None:
    """A number of the tasks by which labels change at a limit, on the wrong side of it; with the tasks at the limit."""
    for name in dict.fromkeys(name for own in numbers.values() for name in own):
        known = {task: own[name] for task, own in numbers.items() if name in own and task in labels}
        sides = [
            Counter(labels[task] for task, one in known.items() if side(one)) for side in (limit.__gt__, limit.__lt__)
        ]
        below, above = ({label for label in sides[place] if label not in sides[1 - place]} for place in (0, 1))
        counts = [sum(side[one] for one in only) for side, only in zip(sides, (below, above), strict=True)]
        if min(counts) < FEWEST_BESIDE or sum(counts) < FEWEST_IN_ALL:
            continue
        at = {task: labels[task] for task, one in known.items() if one == limit}
        right, other = (above, below) if is_upper else (below, above)
        wrong = [task for task, label in at.items() if label in other]
        if len(wrong) >= FEWEST_AT and not any(label in right for label in at.values()):
            return name, wrong, at[wrong[0]]
    return None
