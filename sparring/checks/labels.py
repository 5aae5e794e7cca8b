"""Do reference answers follow from what tools say, and from the limits that the prompt names, in all tasks alike?"""

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

from sparring.checks.answers import text_of
from sparring.checks.explore import Call
from sparring.checks.golds import Golds, golds_of
from sparring.checks.minorities import few_that_differ
from sparring.checks.registry import check
from sparring.checks.rows import decimals, is_equal, number_of
from sparring.checks.sources import Read, Way, read_everywhere
from sparring.checks.subject import Subject
from sparring.checks.survey import documented
from sparring.checks.thresholds import broken_limits
from sparring.findings import Finding, Severity
from sparring.types import Json

FEWEST = 3
"""Tasks in which an answer must be what a tool says, with as many different values, and those in which it must not."""
SHARE = 0.15
"""Of the tasks in which it must be so."""
UNITS = (10, 100, 1000, 1_000_000, 60, 3600, 24, 2.54, 1.609344, 0.45359237)
"""Factors between units."""
_NOT_THE_LAST = re.compile(r"\b(?:exclu\w+|before|until|not counting|without the (?:last|first))\b", re.I)
Source: TypeAlias = tuple[Way, str]
"""A way to call a tool, and a field of its result."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A part of the answer of one task beside what a tool says."""

    read: Read
    call: str
    label: Json
    said: Json

    @property
    def shown(self) -> dict[str, Json]:
        return {"task": self.read.task.id, "call": self.call, "says": self.said, "reference_answer": self.label}


@check("data.labels", seconds=20)
async def labels(subject: Subject) -> Iterable[Finding]:
    """Reference answers are what tools and the prompt's limits give, in all tasks alike.

    Tools that read are called in up to 40 tasks with what the prompt names. A warning where a result is the reference answer in
    some tasks, and in all others it is the answer in another unit, but for its last digit, or a fixed number of days off; where
    counts and sums of listed rows are the answer only without the rows at one end of what was asked for; and where labels of
    tasks with just the number of a limit that the prompt names (`more than 500`, `at least 18`) are those of the other side.
    Where nothing of this is so, a warning where one value (a result, a count, a sum, two numbers added, subtracted or multiplied)
    is the reference answer in three of four tasks, and no visible feature separates the others. Compute tool and
    reference answer by one rule, the one that the prompt states.
    """
    golds = await golds_of(subject)
    if golds is None or not golds.labels():
        return []
    reads = await read_everywhere(subject, golds)
    found = [*_near(golds, reads), *_without_ends(subject, golds, reads), *broken_limits(subject, golds, reads)]
    return found or list(few_that_differ(golds, reads))


def _parts(golds: Golds, read: Read) -> Mapping[str, Json]:
    gold = golds.by_task.get(read.task.id)
    return {} if gold is None else gold.parts or {}


def _near(golds: Golds, reads: Sequence[Read]) -> Iterator[Finding]:
    """Results that are the answer in some tasks, and nearly the answer in all others."""
    best: dict[str, tuple[int, Finding]] = {}
    for part, source, seen in _pairs(golds, reads):
        same = [one for one in seen if is_equal(one.said, one.label) or one.said == one.label]
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
            symptom=f"What {tool} says is {what} in {len(same)} of {len(seen)} tasks, and {how} in the other {len(rest)}, as "
            f"{rest[0].said!r} of {rest[0].call} for {rest[0].label!r}.",
            evidence={"tool": tool, "part": part, "others": [one.shown for one in rest[:4]], "same": same[0].shown},
            change=f"Have {tool} and the reference answer follow one rule: unit, rounding and parsing of what is stored.",
            confirm="The answer that follows from the tools is the reference answer in every task.",
        )
        if part not in best or best[part][0] < len(same):
            best[part] = (len(same), finding)
    yield from (finding for _, finding in best.values())


def _pairs(golds: Golds, reads: Sequence[Read]) -> Iterator[tuple[str, Source, list[Seen]]]:
    """Each part of the answer beside each result, by the way there, over all tasks."""
    by_source: dict[tuple[str, Source], list[Seen]] = defaultdict(list)
    for read in reads:
        for part, label in _parts(golds, read).items():
            for way, name, call, said in read.scalars():
                if not any(role == ("answer", part) for _, role in way[1]) and not isinstance(
                    label, list | dict | bool
                ):
                    by_source[part, (way, name)].append(Seen(read, str(call), label, said))
    for (part, source), seen in by_source.items():
        yield part, source, seen
    # Of one tool that is asked in several ways, the one that comes nearest is meant.
    together: dict[tuple[str, str, str], dict[str, list[Seen]]] = defaultdict(lambda: defaultdict(list))
    for (part, ((tool, roles), name)), seen in by_source.items():
        if any(role[0] == "always" for _, role in roles):
            for one in seen:
                together[part, tool, name][one.read.task.id].append(one)
    for (part, tool, name), tasks in together.items():
        yield part, ((tool, ()), name), [min(several, key=_distance) for several in tasks.values()]


def _distance(one: Seen) -> float:
    """How far what was said is from the label, 0 where it is equal and 1 where it is so in another unit."""
    first, second = number_of(one.label), number_of(one.said)
    if first is None or second is None:
        return 0.0 if one.label == one.said else 9.0
    if abs(first[0] - second[0]) < 1e-9:
        return 0.0
    return 1.0 if first[0] and second[0] and _unit(first[0] / second[0]) else 2.0


def _differ(rest: Sequence[Seen]) -> str | None:
    """How these results differ from the answers; None where they do not all do so in one way."""
    days = [_days(one) for one in rest]
    if None not in days:
        return f"{days[0]:+d} days off" if len(set(days)) == 1 else None
    numbers = [(number_of(one.said), number_of(one.label)) for one in rest]
    known = [(said[0], label[0]) for said, label in numbers if said is not None and label is not None]
    if len(known) < len(rest):
        return None
    factors = {_unit(label / said) if said and label else None for said, label in known}
    if len(factors) == 1 and None not in factors:
        return f"the answer in another unit (the factor is {factors.pop():g})"
    digits = [
        min(decimals(one.said), decimals(one.label)) or max(decimals(one.said), decimals(one.label)) for one in rest
    ]
    if min(digits) > 0 and all(
        abs(said - label) < 2.01 * 10.0**-more for (said, label), more in zip(known, digits, strict=True)
    ):
        return "off in the last digit"
    return None


def _days(one: Seen) -> int | None:
    """How many days a date is after the one that it should be."""
    try:
        return (date.fromisoformat(str(one.said)) - date.fromisoformat(str(one.label))).days
    except ValueError:
        return None


def _unit(ratio: float) -> float | None:
    return next(
        (made for one in UNITS for made in (one, 1 / one) if math.isclose(abs(ratio), made, rel_tol=1e-6)), None
    )


def _is_another_question(same: Sequence[Seen], rest: Sequence[Seen]) -> bool:
    """Whether a word of the prompt separates these tasks from the others, so that they may ask for something else."""
    common = frozenset.intersection(*(one.read.words for one in rest)) - frozenset.union(
        *(one.read.words for one in same)
    )
    other = frozenset.intersection(*(one.read.words for one in same)) - frozenset.union(
        *(one.read.words for one in rest)
    )
    return bool(common | other)


def _without_ends(subject: Subject, golds: Golds, reads: Sequence[Read]) -> Iterator[Finding]:
    """Counts and sums that are the answer only without the rows at one end of what was asked for."""
    named: set[str] = set()
    series: dict[tuple[str, Way, str], list[tuple[Read, Call, Json, dict[str, float]]]] = defaultdict(list)
    for read in reads:
        for way, call, rows in read.rows():
            for what, values in _aggregates(call, rows):
                for part, label in _parts(golds, read).items():
                    if number_of(label) is not None:
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
            text = " ".join(text_of(message) for message in rest[0][0].task.messages)
            if _NOT_THE_LAST.search(f"{text} {documented(subject, way[0])}"):
                continue
            named.add(part)
            yield Finding(
                rule="data.labels",
                severity=Severity.WARNING,
                symptom=f"The reference answer{f' {part!r}' if part else ''} is {what} of {way[0]} without the rows at its "
                f"{end} in all {len(seen)} tasks; with them it would be another one in {len(rest)}.",
                evidence={
                    "tool": way[0], "part": part,
                    "seen": [
                        {"task": read.task.id, "call": str(call), "reference_answer": label, "with_them": values[""]}
                        for read, call, label, values in rest[:4]
                    ],
                },
                change="Compute the reference answer from the rows that the tool shows; as text, a time is after its day.",
                confirm="What follows from the listed rows is the reference answer in every task.",
            )  # fmt: skip
            break


def _aggregates(call: Call, rows: Sequence[Mapping[str, Json]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Counts, sums and means of the listed rows, of those with and without each mark, by the end whose rows are left out."""
    if not rows or len(call.arguments) == 0:
        return
    marks = [name for name, one in rows[0].items() if isinstance(one, bool)]
    columns = [name for name, one in rows[0].items() if number_of(one) is not None and name not in marks]
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
                end: [found[0] for row in kept if (found := number_of(row.get(column))) is not None]
                for end, kept in ends.items()
            }
            yield f"the sum of {column!r}{among}", {end: math.fsum(one) for end, one in numbers.items()}
            yield f"the mean of {column!r}{among}", {end: fmean(one) if one else 0.0 for end, one in numbers.items()}


def _is_at(value: Json, end: Json) -> bool:
    """Whether a value of a row is that of an argument; a time is, on that day."""
    if isinstance(end, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", end):
        return str(value)[:10] == end
    return not isinstance(value, bool) and isinstance(end, int | float) and is_equal(value, end)
