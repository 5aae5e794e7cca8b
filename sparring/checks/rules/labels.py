"""Rule on labels: reference answers must follow from tool results and from the prompt's limits in the same way in all
tasks."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import fmean
from typing import TypeAlias

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.minority_labels import find_minorities
from sparring.checks.evidence.readable_values import ReadableValues, Way, read_everywhere
from sparring.checks.evidence.reference_episodes import ReferenceEpisodes, find_references
from sparring.checks.evidence.returned_rows import count_decimals, is_equal, parse_number
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import get_documentation
from sparring.checks.evidence.thresholds import find_broken_limits
from sparring.findings import Finding, Severity
from sparring.types import Json

FEWEST = 3
"""The minimum for each of three numbers: the tasks whose answer equals a tool's result, the different answers among
these tasks, and the tasks whose answer differs from the result."""
SHARE = 0.15
"""The minimum share of the tasks in which the answer must equal the result."""
UNITS = (10, 100, 1000, 1_000_000, 60, 3600, 24, 2.54, 1.609344, 0.45359237)
"""Factors between units."""
_NOT_THE_LAST = re.compile(r"\b(?:exclu\w+|before|until|not counting|without the (?:last|first))\b", re.I)
Source: TypeAlias = tuple[Way, str]
"""A way to call a tool, and a field of its result."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A part of the answer of one task and the corresponding tool result."""

    read: ReadableValues
    call: str
    label: Json
    result: Json

    @property
    def shown(self) -> dict[str, Json]:
        return {"task": self.read.task.id, "call": self.call, "says": self.result, "reference_answer": self.label}


async def labels(subject: Subject) -> Iterable[Finding]:
    """The reference answers follow from the tool results and from the prompt's limits in the same way in all tasks.

    In up to 40 tasks, the rule calls the read-only tools with what the prompt names. It warns if a result equals the
    reference answer in some tasks, and differs from it in the same way in all other tasks. Such a difference is a
    different unit, a different last digit, or a fixed number of days. It warns if a count or a sum of listed rows
    equals the answer only without the rows at one end of the requested range. It also warns if the prompt states a
    limit (`more than 500`, `at least 18`), and tasks exactly at this limit have the label of the wrong side.

    If none of this applies, the rule warns if one value is the reference answer in at least three of four tasks, and no
    visible feature distinguishes the other tasks. Such a value is a result, a count, a total, or the sum, difference or
    product of two numbers. Compute the tool results and the reference answers by the same rule, the one that the prompt
    states.
    """
    references = await find_references(subject)
    if references is None or not references.labels():
        return []
    reads = await read_everywhere(subject, references)
    found = [
        *_near(references, reads),
        *_without_ends(subject, references, reads),
        *find_broken_limits(subject, references, reads),
    ]
    return found or list(find_minorities(references, reads))


def _parts(references: ReferenceEpisodes, read: ReadableValues) -> Mapping[str, Json]:
    reference = references.by_task.get(read.task.id)
    return {} if reference is None else reference.parts or {}


def _near(references: ReferenceEpisodes, reads: Sequence[ReadableValues]) -> Iterator[Finding]:
    """Yield findings on results that equal the answer in some tasks, and nearly equal it in all others."""
    best: dict[str, tuple[int, Finding]] = {}
    for part, source, seen in _pairs(references, reads):
        same = [one for one in seen if is_equal(one.result, one.label) or one.result == one.label]
        rest = [one for one in seen if one not in same]
        enough = max(FEWEST, SHARE * len(seen))
        if len(same) < enough or len(rest) < FEWEST or len({str(one.label) for one in same}) < FEWEST:
            continue
        how = _differ(rest)
        if how is None or _is_another_question(same, rest):
            continue
        tool = source[0][0]
        what = f"the {part!r} of the answer" if part else "the answer"
        finding = Finding(
            rule="data.labels",
            severity=Severity.WARNING,
            symptom=f"The result of {tool} is {what} in {len(same)} of {len(seen)} tasks, and {how} in the other "
            f"{len(rest)}, for example {rest[0].result!r} of {rest[0].call} instead of {rest[0].label!r}.",
            evidence={"tool": tool, "part": part, "others": [one.shown for one in rest[:4]], "same": same[0].shown},
            change=f"Let {tool} and the reference answer use the same rule for units, rounding and parsing.",
            confirm="The answer that follows from the tools is the reference answer in every task.",
        )
        if part not in best or best[part][0] < len(same):
            best[part] = (len(same), finding)
    yield from (finding for _, finding in best.values())


def _pairs(references: ReferenceEpisodes, reads: Sequence[ReadableValues]) -> Iterator[tuple[str, Source, list[Seen]]]:
    """Yield each part of the answer together with each result of each way to call a tool, over all tasks."""
    by_source: dict[tuple[str, Source], list[Seen]] = defaultdict(list)
    for read in reads:
        for part, label in _parts(references, read).items():
            for way, name, call, result in read.scalars():
                if not any(role == ("answer", part) for _, role in way[1]) and not isinstance(
                    label, list | dict | bool
                ):
                    by_source[part, (way, name)].append(Seen(read, str(call), label, result))
    for (part, source), seen in by_source.items():
        yield part, source, seen
    # If one tool is called in several ways, the nearest result is used.
    together: dict[tuple[str, str, str], dict[str, list[Seen]]] = defaultdict(lambda: defaultdict(list))
    for (part, ((tool, roles), name)), seen in by_source.items():
        if any(role[0] == "always" for _, role in roles):
            for one in seen:
                together[part, tool, name][one.read.task.id].append(one)
    for (part, tool, name), tasks in together.items():
        yield part, ((tool, ()), name), [min(several, key=_distance) for several in tasks.values()]


def _distance(one: Seen) -> float:
    """Return the distance between a result and the label: 0 if they are equal, 1 if they are equal in different
    units."""
    first, second = parse_number(one.label), parse_number(one.result)
    if first is None or second is None:
        return 0.0 if one.label == one.result else 9.0
    if abs(first[0] - second[0]) < 1e-9:
        return 0.0
    return 1.0 if first[0] and second[0] and _unit(first[0] / second[0]) else 2.0


def _differ(rest: Sequence[Seen]) -> str | None:
    """Return how these results differ from the answers, or None if they do not all differ in the same way."""
    days = [_days(one) for one in rest]
    if None not in days:
        return f"{days[0]:+d} days off" if len(set(days)) == 1 else None
    numbers = [(parse_number(one.result), parse_number(one.label)) for one in rest]
    known = [(result[0], label[0]) for result, label in numbers if result is not None and label is not None]
    if len(known) < len(rest):
        return None
    factors = {_unit(label / result) if result and label else None for result, label in known}
    if len(factors) == 1 and None not in factors:
        return f"the answer in another unit (the factor is {factors.pop():g})"
    digits = [
        min(count_decimals(one.result), count_decimals(one.label))
        or max(count_decimals(one.result), count_decimals(one.label))
        for one in rest
    ]
    if min(digits) > 0 and all(
        abs(result - label) < 2.01 * 10.0**-more for (result, label), more in zip(known, digits, strict=True)
    ):
        return "off in the last digit"
    return None


def _days(one: Seen) -> int | None:
    """Return how many days a date is after the expected date."""
    try:
        return (date.fromisoformat(str(one.result)) - date.fromisoformat(str(one.label))).days
    except ValueError:
        return None


def _unit(ratio: float) -> float | None:
    return next(
        (made for one in UNITS for made in (one, 1 / one) if math.isclose(abs(ratio), made, rel_tol=1e-6)), None
    )


def _is_another_question(same: Sequence[Seen], rest: Sequence[Seen]) -> bool:
    """Return True if a word in the prompt separates these tasks from the others, because their question may then be
    different."""
    common = frozenset.intersection(*(one.read.words for one in rest)) - frozenset.union(
        *(one.read.words for one in same)
    )
    other = frozenset.intersection(*(one.read.words for one in same)) - frozenset.union(
        *(one.read.words for one in rest)
    )
    return bool(common | other)


def _without_ends(
    subject: Subject, references: ReferenceEpisodes, reads: Sequence[ReadableValues]
) -> Iterator[Finding]:
    """Yield findings on counts and sums that equal the answer only without the rows at one end of the requested
    range."""
    named: set[str] = set()
    series: dict[tuple[str, Way, str], list[tuple[ReadableValues, Call, Json, dict[str, float]]]] = defaultdict(list)
    for read in reads:
        for way, call, rows in read.rows():
            for what, values in _aggregates(call, rows):
                for part, label in _parts(references, read).items():
                    if parse_number(label) is not None:
                        series[part, way, what].append((read, call, label, values))
    for (part, way, what), seen in series.items():
        if part in named or len(seen) < 2 * FEWEST or len({str(label) for _, _, label, _ in seen}) < FEWEST:
            continue
        fits = {
            end: [one for one in seen if end in one[3] and is_equal(round(one[3][end], 6), one[2])]
            for end in {end for *_, values in seen for end in values}
        }
        whole = fits.pop("", [])
        for end, fitting in fits.items():
            rest = [one for one in fitting if one not in whole]
            if len(fitting) < len(seen) or len(rest) < FEWEST or not any(one in whole for one in fitting):
                continue
            text = " ".join(get_text(message) for message in rest[0][0].task.messages)
            if _NOT_THE_LAST.search(f"{text} {get_documentation(subject, way[0])}"):
                continue
            named.add(part)
            yield Finding(
                rule="data.labels",
                severity=Severity.WARNING,
                symptom=f"The reference answer{f' {part!r}' if part else ''} is {what} of {way[0]} without the rows "
                f"at the limit "
                f"{end} in all {len(seen)} tasks. With these rows, the answer would differ in {len(rest)} tasks.",
                evidence={
                    "tool": way[0],
                    "part": part,
                    "seen": [
                        {"task": read.task.id, "call": str(call), "reference_answer": label, "with_them": values[""]}
                        for read, call, label, values in rest[:4]
                    ],
                },
                change="Compute the reference answer from the rows that the tool shows. If times are compared as text, "
                "a time is greater than its own day.",
                confirm="The reference answer follows from the listed rows in every task.",
            )
            break


def _aggregates(call: Call, rows: Sequence[Mapping[str, Json]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the counts, sums and means of the listed rows, and of the rows with each Boolean value. Each comes with its
    values, keyed by the argument whose rows are left out, or by "" if no rows are left out."""
    if not rows or len(call.arguments) == 0:
        return
    marks = [name for name, one in rows[0].items() if isinstance(one, bool)]
    columns = [name for name, one in rows[0].items() if parse_number(one) is not None and name not in marks]
    filters = [("", None), *itertools.product(marks, (True, False))]
    for mark, is_set in filters:
        chosen = [row for row in rows if not mark or row.get(mark) is is_set]
        among = f" ({mark} is {str(is_set).lower()})" if mark else ""
        ends = {"": chosen}
        for argument, value in call.arguments.items():
            kept = [row for row in chosen if not any(_is_at(one, value) for one in row.values())]
            ends[f"{argument!r}"] = kept
        yield f"the number of rows{among}", {end: float(len(kept)) for end, kept in ends.items()}
        for column in columns:
            numbers = {
                end: [found[0] for row in kept if (found := parse_number(row.get(column))) is not None]
                for end, kept in ends.items()
            }
            yield f"the sum of {column!r}{among}", {end: math.fsum(one) for end, one in numbers.items()}
            yield f"the mean of {column!r}{among}", {end: fmean(one) if one else 0.0 for end, one in numbers.items()}


def _is_at(value: Json, end: Json) -> bool:
    """Return True if a value of a row equals the value of an argument. A time matches the day on which it falls."""
    if isinstance(end, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", end):
        return str(value)[:10] == end
    return not isinstance(value, bool) and isinstance(end, int | float) and is_equal(value, end)
