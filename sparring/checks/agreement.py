"""Do the tools that read say the same of the same thing, and does one find what another shows?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparring.checks.arguments import words_of
from sparring.checks.explore import Call
from sparring.checks.registry import check
from sparring.checks.rows import decimals, is_equal, number_of
from sparring.checks.subject import Subject
from sparring.checks.survey import Said, Survey, documented, steady_surveys
from sparring.checks.zones import wrong_clocks
from sparring.findings import Finding, Severity
from sparring.types import Json

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
FEWEST = 3
"""Things of which two tools must speak before they are compared."""
MOSTLY_EQUAL = 2
"""Times as many things two tools must agree about as they disagree about, before values that merely differ are reported."""
_CUT = re.compile(
    r"\b(?:first|begin\w*|start|short\w*|preview|summar\w+|snippet|excerpt|cut|truncat\w+|up to|at most)\b"
)
_ROUNDED = re.compile(r"\b(?:round\w*|whole|about|approx\w*|nearest|integer|estimate\w*)\b")
_CASE = re.compile(r"\b(?:lower|upper|case|capital\w*)\b")
_BY_CALL = frozenset(
    ("rank", "position", "index", "score", "relevance", "match", "page", "more", "row", "count", "total")
)
"""Names of fields that say something of the call and not of the thing."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What two tools say of one thing under one name."""

    task: str
    calls: tuple[Call, Call]
    thing: str
    values: tuple[Json, Json]


@check("environment.agreement", needs=("environment",))
async def agreement(subject: Subject) -> Iterable[Finding]:
    """Tools say the same of the same thing: in the same units, as exactly, and whole.

    Tools that read are asked for everything that other results name. What two of them say under one name of a thing that both
    identify is compared. Named are numbers that differ by one factor (units), that are cut to fewer digits, texts that are cut
    or written otherwise, fields that stand in each other's place, and values that merely differ. A description that says so,
    "rounded" or "the first 40 characters" say, is respected. Times of one thing in UTC and by local clocks must differ as the
    clocks of the one place that is named do on that day, in summer and in winter. Read both from one source.
    """
    pairs: dict[tuple[str, str, str, str], list[Pair]] = defaultdict(list)
    surveys = await steady_surveys(subject)
    for survey in surveys:
        for key, pair in _pairs(survey):
            pairs[key].append(pair)
    findings = wrong_clocks(subject, surveys)
    named: set[frozenset[str]] = set()
    for (one, field, other, other_field), seen in pairs.items():
        kind = _difference(seen, f"{documented(subject, one)} {documented(subject, other)}")
        tools = frozenset((one, other, field))
        if kind is None or tools in named:
            continue
        named.add(tools)
        apart = [pair for pair in seen if not is_equal(*pair.values)]
        swapped = _swapped_with(field, apart, pairs, one, other) if kind == "differs" else None
        if kind == "differs" and swapped is None and len(seen) - len(apart) < MOSTLY_EQUAL * len(apart):
            continue  # two things of one name, such as a date of each document
        named.add(frozenset((one, other, swapped or field)))
        findings.append(
            Finding(
                rule="environment.agreement",
                severity=Severity.WARNING,
                symptom=f"{one} and {other} disagree about {field or other_field!r}: "
                + (f"it stands in the place of {swapped!r}" if swapped else kind)
                + f" for {len(apart)} of {len(seen)} things, as {apart[0].thing}: {_short(apart[0].values[0])} against "
                f"{_short(apart[0].values[1])}.",
                evidence={
                    "tools": [one, other],
                    "things": [
                        {"task": p.task, "calls": list(map(str, p.calls)), "thing": p.thing, "said": list(p.values)}
                        for p in apart[:4]
                    ],
                    "compared": len(seen),
                    "different": len(apart),
                },
                change="Have both tools read one value and write it in one way, in the unit that their descriptions name.",
                confirm=AGAIN,
            )
        )
    return findings


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _pairs(survey: Survey) -> Iterator[tuple[tuple[str, str, str, str], Pair]]:
    """What each two tools say of one thing: a call for it and its row in a list, two calls for it, its rows in two lists."""
    records, rows = _records(survey), _rows(survey)
    seen: set[tuple[str, str, str]] = set()
    for index, one in enumerate(records):
        values = list(one.call.arguments.values())
        others = [(other, other.fields) for other in records[index + 1 :] if other.call.arguments == one.call.arguments]
        for name, listed in rows.items():
            if name != one.call.tool:
                matching = [(said, row) for said, row in listed if _is_of(row, one.call.arguments)]
                if len({str(row) for _, row in matching}) == 1:
                    others.append(matching[0])
        for other, fields in others:
            key = (str(one.call), other.call.tool, str(values))
            if other.call.tool != one.call.tool and key not in seen:
                seen.add(key)
                yield from _compared(survey, one, one.fields, other, fields, ", ".join(map(str, values)))
    yield from _rows_of_two(survey, rows)


def _records(survey: Survey) -> list[Said]:
    """Calls for one thing, which say something of it."""
    return [
        one for one in survey.found() if one.call.arguments and one.fields and (not one.listings or len(one.fields) > 1)
    ]


def _rows(survey: Survey) -> dict[str, list[tuple[Said, Mapping[str, Json]]]]:
    """The rows of the lists that each tool returned, with several fields."""
    found: dict[str, list[tuple[Said, Mapping[str, Json]]]] = defaultdict(list)
    for one in survey.found():
        for listed in one.listings.values():
            found[one.call.tool] += [(one, row) for row in listed if len(row) > 1]
    return found


def _is_of(row: Mapping[str, Json], arguments: Mapping[str, Json]) -> bool:
    """Whether a row is of what a call asked for: it has each of its values, numbers under their own name."""
    for name, value in arguments.items():
        if isinstance(value, bool | list | dict) or value is None:
            return False
        asked = set(words_of(name))
        fields = [key for key, own in row.items() if is_equal(own, value)]
        is_named = any(asked & set(words_of(key)) for key in fields)
        if not (is_named if isinstance(value, int | float) else fields):
            return False
    return True


def _rows_of_two(survey: Survey, rows: Mapping[str, list]) -> Iterator[tuple[tuple[str, str, str, str], Pair]]:
    names = list(rows)
    for index, one in enumerate(names):
        for other in names[index + 1 :]:
            for key in _identifying(rows[one], rows[other]):
                theirs = {str(row[key]): (said, row) for said, row in rows[other] if key in row}
                for said, row in rows[one]:
                    if key in row and str(row[key]) in theirs:
                        there, fields = theirs[str(row[key])]
                        yield from _compared(survey, said, row, there, fields, str(row[key]), without=key)
                break


def _identifying(one: Sequence, other: Sequence) -> Iterator[str]:
    """Names under which each row of both lists has a text or a number of its own."""
    for name in one[0][1] if one and other else ():
        words = words_of(name)
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
    one: Said,
    own: Mapping[str, Json],
    other: Said,
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


def _named(said: Said, name: str) -> tuple[str, ...]:
    """The words under which a tool says a value: of the field, or of the tool that returns nothing else."""
    return (
        words_of(name)
        if name
        else tuple(one for one in words_of(said.call.tool) if one not in ("get", "find", "of", "show"))
    )


def _difference(seen: Sequence[Pair], text: str) -> str | None:
    """How the values of two tools differ; None where they do not, where too few are known, or where it is described."""
    apart = [pair for pair in seen if not is_equal(*pair.values)]
    if len({(p.task, p.thing) for p in seen}) < FEWEST or len({(p.task, p.thing) for p in apart}) < 2:
        return None
    numbers = [(number_of(p.values[0]), number_of(p.values[1])) for p in apart]
    if all(one is not None and other is not None for one, other in numbers):
        known = [(one, other) for one, other in numbers if one is not None and other is not None]
        if any(one[1] != other[1] and one[1] and other[1] for one, other in known):
            return None  # each names its unit
        digits = [tuple(map(decimals, pair.values)) for pair in apart]
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
    """The one factor between all pairs of numbers, each with its digits after the point; None where there is none."""
    one, other, _, _ = max(pairs, key=lambda pair: abs(pair[1]))
    factor = one / other if other else 0.0
    slack = [0.5 * 10.0**-digits + abs(factor) * 0.5 * 10.0**-others for _, _, digits, others in pairs]
    is_one = all(
        abs(one - factor * other) <= more + 0.002 * abs(one)
        for (one, other, _, _), more in zip(pairs, slack, strict=True)
    )
    # Of small whole numbers nearly any is twice another one, when both may be rounded.
    num_telling = sum(more <= 0.05 * abs(one) for (one, *_), more in zip(pairs, slack, strict=True))
    is_known = num_telling >= 2 and len({(one, other) for one, other, _, _ in pairs}) > 1
    return factor if factor and is_one and is_known else None


def _is_rounded(one: Json, other: Json) -> bool:
    """Whether one number is the other with fewer digits, rounded or cut."""
    first, second = number_of(one), number_of(other)
    assert first is not None and second is not None, "both are numbers"  # noqa: PT018
    step = 10.0 ** -min(decimals(one), decimals(other))
    return decimals(one) != decimals(other) and abs(first[0] - second[0]) < step


def _swapped_with(
    field: str, apart: Sequence[Pair], pairs: Mapping[tuple[str, str, str, str], Sequence[Pair]], one: str, other: str
) -> str | None:
    """The field of the same things whose values stand in the place of this one's."""
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
