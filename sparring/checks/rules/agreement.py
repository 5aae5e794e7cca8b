"""Rule on agreement: read-only tools must return the same values for the same item."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.returned_rows import count_decimals, is_equal, parse_number
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import CallResult, Survey, get_documentation, survey_steady_tools
from sparring.checks.evidence.time_zones import find_wrong_clocks
from sparring.findings import Finding, Severity
from sparring.types import Json

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
FEWEST = 3
"""The number of items that two tools must both return before they are compared."""
MOSTLY_EQUAL = 2
"""The rule reports different values if the number of items on which two tools agree is at least this factor times the
number on which they disagree."""
_CUT = re.compile(
    r"\b(?:first|begin\w*|start|short\w*|preview|summar\w+|snippet|excerpt|cut|truncat\w+|up to|at most)\b"
)
_ROUNDED = re.compile(r"\b(?:round\w*|whole|about|approx\w*|nearest|integer|estimate\w*)\b")
_CASE = re.compile(r"\b(?:lower|upper|case|capital\w*)\b")
_BY_CALL = frozenset(
    ("rank", "position", "index", "score", "relevance", "match", "page", "more", "row", "count", "total")
)
"""Names of fields that describe the call, not the item."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The values that two tools return for the same item under the same name."""

    task: str
    calls: tuple[Call, Call]
    thing: str
    values: tuple[Json, Json]


async def agreement(subject: Subject) -> Iterable[Finding]:
    """Tools return the same values for the same item: in the same units, with the same precision, and complete.

    The rule calls the read-only tools with every name that appears in other results. If two tools identify the same
    item and return a value for it under the same name, the rule compares the two values. It reports numbers that differ
    by a constant factor (units), numbers with fewer digits, texts that are truncated or written differently, swapped
    fields, and values that simply differ. It accepts differences that a description announces, for example with
    "rounded" or "the first 40 characters". UTC and local times for the same item must differ by the UTC offset of the
    named place on that day, in summer and in winter. Read both values from the same source.
    """
    pairs: dict[tuple[str, str, str, str], list[Pair]] = defaultdict(list)
    surveys = await survey_steady_tools(subject)
    for survey in surveys:
        for key, pair in _pairs(survey):
            pairs[key].append(pair)
    findings = find_wrong_clocks(subject, surveys)
    named: set[frozenset[str]] = set()
    for (one, field, other, other_field), seen in pairs.items():
        kind = _difference(seen, f"{get_documentation(subject, one)} {get_documentation(subject, other)}")
        tools = frozenset((one, other, field))
        if kind is None or tools in named:
            continue
        named.add(tools)
        apart = [pair for pair in seen if not is_equal(*pair.values)]
        swapped = _swapped_with(field, apart, pairs, one, other) if kind == "differs" else None
        if kind == "differs" and swapped is None and len(seen) - len(apart) < MOSTLY_EQUAL * len(apart):
            continue  # two different values with the same name, such as the date of each document
        named.add(frozenset((one, other, swapped or field)))
        findings.append(
            Finding(
                rule="environment.agreement",
                severity=Severity.WARNING,
                symptom=f"{one} and {other} disagree about {field or other_field!r}: "
                + (f"it has the value of {swapped!r}" if swapped else kind)
                + f" for {len(apart)} of {len(seen)} items, for example {apart[0].thing}: "
                f"{_short(apart[0].values[0])} against {_short(apart[0].values[1])}.",
                evidence={
                    "tools": [one, other],
                    "things": [
                        {"task": p.task, "calls": list(map(str, p.calls)), "thing": p.thing, "said": list(p.values)}
                        for p in apart[:4]
                    ],
                    "compared": len(seen),
                    "different": len(apart),
                },
                change="Let both tools read one value and format it in the same way, in the unit that their "
                "descriptions name.",
                confirm=AGAIN,
            )
        )
    return findings


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _pairs(survey: Survey) -> Iterator[tuple[tuple[str, str, str, str], Pair]]:
    """Yield the values that two tools return for the same item: in a call and a list row, in two calls, or in rows of
    two lists."""
    records, rows = _records(survey), _rows(survey)
    seen: set[tuple[str, str, str]] = set()
    for index, one in enumerate(records):
        values = list(one.call.arguments.values())
        others = [(other, other.fields) for other in records[index + 1 :] if other.call.arguments == one.call.arguments]
        for name, listed in rows.items():
            if name != one.call.tool:
                matching = [(result, row) for result, row in listed if _is_of(row, one.call.arguments)]
                if len({str(row) for _, row in matching}) == 1:
                    others.append(matching[0])
        for other, fields in others:
            key = (str(one.call), other.call.tool, str(values))
            if other.call.tool != one.call.tool and key not in seen:
                seen.add(key)
                yield from _compared(survey, one, one.fields, other, fields, ", ".join(map(str, values)))
    yield from _rows_of_two(survey, rows)


def _records(survey: Survey) -> list[CallResult]:
    """Return the results of calls that specify one item and return something about it."""
    return [
        one for one in survey.found() if one.call.arguments and one.fields and (not one.listings or len(one.fields) > 1)
    ]


def _rows(survey: Survey) -> dict[str, list[tuple[CallResult, Mapping[str, Json]]]]:
    """Return, for each tool, the rows with several fields in the lists that it returned."""
    found: dict[str, list[tuple[CallResult, Mapping[str, Json]]]] = defaultdict(list)
    for one in survey.found():
        for listed in one.listings.values():
            found[one.call.tool] += [(one, row) for row in listed if len(row) > 1]
    return found


def _is_of(row: Mapping[str, Json], arguments: Mapping[str, Json]) -> bool:
    """Return True if a row belongs to the item that a call requested. The row must contain each value of the call. A
    number must also have the same name in the row as in the call."""
    for name, value in arguments.items():
        if isinstance(value, bool | list | dict) or value is None:
            return False
        asked = set(split_words(name))
        fields = [key for key, own in row.items() if is_equal(own, value)]
        is_named = any(asked & set(split_words(key)) for key in fields)
        if not (is_named if isinstance(value, int | float) else fields):
            return False
    return True


def _rows_of_two(survey: Survey, rows: Mapping[str, list]) -> Iterator[tuple[tuple[str, str, str, str], Pair]]:
    names = list(rows)
    for index, one in enumerate(names):
        for other in names[index + 1 :]:
            for key in _identifying(rows[one], rows[other]):
                theirs = {str(row[key]): (result, row) for result, row in rows[other] if key in row}
                for result, row in rows[one]:
                    if key in row and str(row[key]) in theirs:
                        there, fields = theirs[str(row[key])]
                        yield from _compared(survey, result, row, there, fields, str(row[key]), without=key)
                break


def _identifying(one: Sequence, other: Sequence) -> Iterator[str]:
    """Yield the names under which each row of both lists has a unique text or number."""
    for name in one[0][1] if one and other else ():
        words = split_words(name)
        if not name or not all(name in row for _, row in (*one, *other)):
            continue
        is_id = bool({"id", "sku", "code", "name", "title", "number", "key"} & set(words))
        alone = all(
            len({str(row[name]) for _, row in rows}) == len({str(row) for _, row in rows}) for rows in (one, other)
        )
        if is_id and alone:
            yield name


def _compared(
    survey: Survey,
    one: CallResult,
    own: Mapping[str, Json],
    other: CallResult,
    theirs: Mapping[str, Json],
    thing: str,
    without: str = "",
) -> Iterator[tuple[tuple[str, str, str, str], Pair]]:
    for name, value in own.items():
        for other_name, there in theirs.items():
            words, others = _named(one, name), _named(other, other_name)
            is_same = words and others and (words == others or (not name and set(others) <= set(words)))
            is_same = is_same or (not other_name and others and words and set(words) <= set(others))
            if not is_same or (set(words) & _BY_CALL and one.listings.keys() != other.listings.keys()):
                continue
            is_nothing = None in (value, there) or isinstance(value, bool) != isinstance(there, bool)
            if other_name == without or is_nothing or str(value) == thing:
                continue
            key = (one.call.tool, name, other.call.tool, other_name)
            yield key, Pair(survey.task.id, (one.call, other.call), thing, (value, there))


def _named(result: CallResult, name: str) -> tuple[str, ...]:
    """Return the words that describe a value: the words of the value's field, or of the tool if the tool returns
    nothing else."""
    return (
        split_words(name)
        if name
        else tuple(one for one in split_words(result.call.tool) if one not in ("get", "find", "of", "show"))
    )


def _difference(seen: Sequence[Pair], text: str) -> str | None:
    """Return how the values of two tools differ. Return None if the values agree, if too few are known, or if a
    description announces the difference."""
    apart = [pair for pair in seen if not is_equal(*pair.values)]
    if len({(p.task, p.thing) for p in seen}) < FEWEST or len({(p.task, p.thing) for p in apart}) < 2:
        return None
    numbers = [(parse_number(p.values[0]), parse_number(p.values[1])) for p in apart]
    if all(one is not None and other is not None for one, other in numbers):
        known = [(one, other) for one, other in numbers if one is not None and other is not None]
        if any(one[1] != other[1] and one[1] and other[1] for one, other in known):
            return None  # each field name contains its unit
        digits = [tuple(map(count_decimals, pair.values)) for pair in apart]
        factor = _factor([(one[0], other[0], *places) for (one, other), places in zip(known, digits, strict=True)])
        if factor is not None:
            return f"the factor is {max(factor, 1 / factor, key=abs):.4g}"
        if all(_is_rounded(*p.values) for p in apart):
            return None if _ROUNDED.search(text) else "one has fewer digits"
        return "differs"
    texts = [(str(p.values[0]), str(p.values[1])) for p in apart]
    if all(one.casefold() == other.casefold() for one, other in texts):
        return None if _CASE.search(text) else "upper and lower case differ"
    if all(one.startswith(other.rstrip(" .…")) or other.startswith(one.rstrip(" .…")) for one, other in texts):
        is_marked = all(one.endswith(("…", "...")) or other.endswith(("…", "...")) for one, other in texts)
        return None if is_marked or _CUT.search(text) else "one is cut"
    return "differs"


def _factor(pairs: Sequence[tuple[Any, ...]]) -> float | None:
    """Return the common factor between all pairs of numbers, or None if there is no such factor. Each number comes with
    its number of decimals."""
    one, other, _, _ = max(pairs, key=lambda pair: abs(pair[1]))
    factor = one / other if other else 0.0
    slack = [0.5 * 10.0**-digits + abs(factor) * 0.5 * 10.0**-others for _, _, digits, others in pairs]
    is_one = all(
        abs(one - factor * other) <= more + 0.002 * abs(one)
        for (one, other, _, _), more in zip(pairs, slack, strict=True)
    )
    # If both may be rounded, nearly every small whole number is twice another one.
    num_telling = sum(more <= 0.05 * abs(one) for (one, *_), more in zip(pairs, slack, strict=True))
    is_known = num_telling >= 2 and len({(one, other) for one, other, _, _ in pairs}) > 1
    return factor if factor and is_one and is_known else None


def _is_rounded(one: Json, other: Json) -> bool:
    """Return True if one number is the other with fewer digits, rounded or truncated."""
    first, second = parse_number(one), parse_number(other)
    assert first is not None and second is not None, "both are numbers"  # noqa: PT018
    step = 10.0 ** -min(count_decimals(one), count_decimals(other))
    return count_decimals(one) != count_decimals(other) and abs(first[0] - second[0]) < step


def _swapped_with(
    field: str, apart: Sequence[Pair], pairs: Mapping[tuple[str, str, str, str], Sequence[Pair]], one: str, other: str
) -> str | None:
    """Return the other field of the same items whose values appear in place of this field's values."""
    mine = {(p.task, p.thing): p.values for p in apart}
    for (first, name, second, _), seen in pairs.items():
        if (first, second) == (one, other) and name != field:
            theirs = {(p.task, p.thing): p.values for p in seen}
            shared = mine.keys() & theirs.keys()
            if len(shared) > 1 and all(
                is_equal(mine[key][0], theirs[key][1]) and is_equal(mine[key][1], theirs[key][0]) for key in shared
            ):
                return name
    return None
