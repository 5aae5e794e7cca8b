"""Reference answers that equal a value from the tools in most tasks, but differ from it in a few other tasks without a
visible reason."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from sparring.checks.evidence.readable_values import ReadableValues
from sparring.checks.evidence.reference_episodes import ReferenceEpisodes
from sparring.checks.evidence.returned_rows import count_decimals, is_equal, parse_number
from sparring.findings import Finding, Severity
from sparring.types import Json

MOST = 0.75
"""If the answer is the value in at least this share of tasks, the other tasks count as wrong."""
FEWEST = 8
"""The minimum number of tasks in which the answer is the value. The number of distinct answers in these tasks must be
at least a third of the number of tasks."""
FEWEST_OTHERS = 2
MOST_NUMBERS = 16
"""The maximum number of numbers of a task that are added, subtracted and multiplied."""
MOST_KINDS = 8
"""The maximum number of distinct texts of a feature that may separate the tasks."""


def find_minorities(references: ReferenceEpisodes, reads: Sequence[ReadableValues]) -> Iterator[Finding]:
    """Yield a finding for each part of the answer that equals one value in most tasks, but differs from it in the other
    tasks without a visible reason."""
    values = {read.task.id: _collect_values(read) for read in reads}
    for part in references.labels():
        labels = {
            name: (reference.parts or {}).get(part)
            for name, reference in references.by_task.items()
            if name in values and reference.parts
        }
        best = _find_best(part, labels, values)
        if best is None:
            continue
        name, same, others = best
        seen = {task: _visible(one) for task, one in values.items() if task in same or task in others}
        words = {read.task.id: read.words for read in reads}
        if len(others) < FEWEST_OTHERS or _are_apart(seen, same, others) or _ask_otherwise(words, same, others):
            continue
        shown = [{"task": task, "reference_answer": labels[task], name: values[task][name]} for task in others[:4]]
        what = f"the reference answer{f' {part!r}' if part else ''}"
        yield Finding(
            rule="data.labels",
            severity=Severity.WARNING,
            symptom=f"{name} is {what} in {len(same)} of {len(same) + len(others)} tasks but not in the other "
            f"{len(others)}, which no visible feature separates: {shown[0][name]!r} instead of "
            f"{labels[others[0]]!r} in task {others[0]}.",
            evidence={"part": part, "value": name, "others": shown},
            change="Correct these reference answers, or make the prompt or a tool show the reason for them.",
            confirm="The value is the reference answer in every task, or a visible feature separates the others.",
        )


def _collect_values(read: ReadableValues) -> dict[str, Json]:
    """Return the values that tools return in a task, aggregates of the returned rows, and the results of arithmetic on
    two numbers, all keyed by name."""
    found: dict[str, Json] = {}
    for (tool, roles), name, _, value in read.scalars():
        if not any(role[0] == "answer" for _, role in roles):
            asked = ", ".join(" ".join(role) for _, role in roles)
            found[f"{name or 'what'} of {tool}({asked})"] = value
    for (tool, roles), _, rows in read.rows():
        asked = ", ".join(" ".join(role) for _, role in roles)
        if any(role[0] == "answer" for _, role in roles):
            continue
        found[f"the number of rows of {tool}({asked})"] = len(rows)
        for column in rows[0] if rows else ():
            numbers = [one[0] for row in rows if (one := parse_number(row.get(column))) is not None]
            if len(numbers) == len(rows):
                found |= _find_extremes(rows, column, numbers, f"{tool}({asked})")
                for kind, compute in (("sum", math.fsum), ("mean", fmean), ("least", min), ("most", max)):
                    found[f"the {kind} of {column!r} in {tool}({asked})"] = round(compute(numbers), 9)
    numbers = {
        name: one[0] for name, value in found.items() if not isinstance(value, bool) and (one := parse_number(value))
    }
    numbers |= {
        " ".join(role): one[0]
        for role, value in read.values.items()
        if role[0] == "prompt" and (one := parse_number(value))
    }
    return found | _combine(numbers)


def _combine(numbers: Mapping[str, float]) -> dict[str, Json]:
    """Return the sums, differences and products of two numbers."""
    found: dict[str, Json] = {}
    for (first, one), (second, other) in itertools.combinations(list(numbers.items())[:MOST_NUMBERS], 2):
        found[f"{first} + {second}"] = round(one + other, 9)
        found[f"{first} - {second}"] = round(one - other, 9)
        found[f"{second} - {first}"] = round(other - one, 9)
        found[f"{first} x {second}"] = round(one * other, 9)
    return found


def _find_extremes(
    rows: Sequence[Mapping[str, Json]], column: str, numbers: Sequence[float], of: str
) -> dict[str, Json]:
    """Return the other columns of the row with the smallest value and of the row with the largest value. A row is left
    out if another row has the same value."""
    found: dict[str, Json] = {}
    for kind, extreme in (("least", min(numbers)), ("most", max(numbers))):
        if numbers.count(extreme) == 1 and len(numbers) > 2:
            row = rows[numbers.index(extreme)]
            found |= {f"{name!r} where {column!r} is the {kind} of {of}": row[name] for name in row if name != column}
    return found


def _find_best(
    part: str, labels: Mapping[str, Json], values: Mapping[str, Mapping[str, Json]]
) -> tuple[str, list[str], list[str]] | None:
    """Return the value that is the answer most often, with the tasks in which it is the answer and the tasks in which
    it is not. Return None if a value is always the answer, or if no value is the answer in enough tasks."""
    best: tuple[str, list[str], list[str]] | None = None
    names: dict[str, int] = defaultdict(int)
    for task in labels:
        for name in values[task]:
            names[name] += 1
    for name, count in names.items():
        known = [task for task in labels if name in values[task]]
        if count < 0.9 * len(labels):
            continue
        same = [task for task in known if _is_answer(values[task][name], labels[task])]
        distinct = {str(labels[task]) for task in same}
        if len(same) == len(known) and len(same) >= FEWEST:
            return None
        if len(same) < max(FEWEST, MOST * len(known)) or len(distinct) < len(same) / 3:
            continue
        if best is None or len(same) > len(best[1]):
            best = (name, same, [task for task in known if task not in same])
    return best


def _is_answer(value: Json, label: Json) -> bool:
    """Return True if a value equals an answer when it is rounded to the answer's number of decimals."""
    first, second = parse_number(value), parse_number(label)
    if first is None or second is None or isinstance(value, bool):
        return is_equal(value, label)
    return abs(first[0] - second[0]) <= 0.51 * 10.0 ** -count_decimals(label)


def _ask_otherwise(words: Mapping[str, frozenset[str]], same: Sequence[str], others: Sequence[str]) -> bool:
    """Return True if each of the few tasks has a word that several of them share and no other task has."""
    known = frozenset.union(*(words[task] for task in same))
    own = Counter(word for task in others for word in words[task] - known)
    return all(any(own[word] > 1 for word in words[task] - known) for task in others)


def _visible(values: Mapping[str, Json]) -> Mapping[str, Json]:
    return {name: value for name, value in values.items() if value is not None and not isinstance(value, list | dict)}


def _are_apart(seen: Mapping[str, Mapping[str, Json]], same: Sequence[str], others: Sequence[str]) -> bool:
    """Return True if a visible feature separates the few tasks from the others.

    The feature is a number that is always above or always below the numbers of the others, or the values of one or two
    fields that have few distinct values.
    """
    kinds: list[str] = []
    for name in dict.fromkeys(name for one in seen.values() for name in one):
        mine, theirs = ([seen[task].get(name) for task in tasks] for tasks in (others, same))
        numbers = [
            [found[0] for one in values if (found := parse_number(one)) is not None] for values in (mine, theirs)
        ]
        is_numeric = len(numbers[0]) == len(mine) and len(numbers[1]) == len(theirs)
        if is_numeric and (min(numbers[0]) > max(numbers[1]) or max(numbers[0]) < min(numbers[1])):
            return True
        if len({str(one) for one in (*mine, *theirs)}) <= MOST_KINDS:
            kinds.append(name)
    for first, second in itertools.combinations_with_replacement(kinds, 2):
        mine, theirs = (
            {(str(seen[task].get(first)), str(seen[task].get(second))) for task in tasks} for tasks in (others, same)
        )
        if not mine & theirs:
            return True
    return False
