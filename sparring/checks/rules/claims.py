"""Rule on statements: what tools state about rows must be true. This includes the number of rows, their sums, their
order, and which rows a filter selects."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import TypeAlias

from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.returned_rows import count_decimals, is_equal, parse_number
from sparring.checks.evidence.stated_groups import LEFT_OUT, find_missing_groups
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import CallResult, Survey, get_documentation, survey_steady_tools
from sparring.findings import Finding, Severity
from sparring.types import Json

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
SORTED = "rows that it calls sorted are not"
SORTED_AS_TEXTS = f"{SORTED} (numbers are in the order of texts)"
FEWEST = 2
"""The number of results for which a statement must be false before it is reported."""
Row: TypeAlias = Mapping[str, Json]
Key: TypeAlias = tuple[str, str]
_LIMITED = re.compile(
    r"\b(?:pages?|limit|next|cursor|offset|recent|sample|some)\b|"
    r"\b(?:at most|up to|first|last|top|only) (?:\d+|n|two|three|four|five|six|eight|ten|twenty)\b"
)
_PAGING = {"page", "limit", "offset", "cursor", "size", "top", "n", "num", "count", "skip", "max_results"}
_COUNTS = {"count", "total", "matches", "results", "found", "number", "num"}
_FIRST = re.compile(
    r"\b(earliest|oldest|newest|latest|most recent|cheapest|dearest|most "
    r"expensive|highest|lowest|largest|smallest|biggest|"
    r"most|least|fewest|best|longest|shortest) (?:\w+ )?first\b"
)
_SORTED = re.compile(
    r"\b(?:sorted|ordered|ranked|in order|order) (?:by|of) (?:the |their )?([\w ]{1,30})|\balphabetical(?:ly)?\b"
)
_DOWN = re.compile(
    r"newest|latest|most|dearest|highest|largest|biggest|best|longest|descending|decreasing|falling|high to low|reverse"
)
_LOW = {"min", "minimum", "least", "from", "since", "start", "begin", "first", "earliest"}
_HIGH = {"max", "maximum", "most", "to", "until", "end", "till", "last", "latest"}
_INCLUDED = re.compile(
    r"\b(?:inclusive\w*|includ\w+|both|at most|at least|up to|or (?:more|less|fewer|later|earlier))\b"
)
_EXCLUDED = re.compile(
    r"\b(?:exclusive\w*|exclud\w+|before|after|more than|less than|fewer than|over|under|above|below)\b"
)
_ALWAYS_INCLUDED = {"min", "minimum", "max", "maximum", "least", "most"}
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(slots=True)
class _Claim:
    """One kind of statement: how often it was true, and the results for which it was false."""

    kept: int = 0
    broken: list[dict[str, Json]] = field(default_factory=list)


async def claims(subject: Subject) -> Iterable[Finding]:
    """What tools state about rows is true.

    A count must equal the number of rows that the tool returns, or that another tool lists for the same arguments. A
    sum, an average, a minimum or a maximum must equal the value computed from a column of these rows. Rows that a
    description calls sorted must be in that order, with numbers sorted as numbers. An argument that is named like a
    column, alone or with `min` or `max`, must select all matching rows and no others. Groups must include all rows of
    the task's data, also those without a value, unless a description excludes them. Common causes are a missing row at
    one end, a limit that excludes its own value, and numbers that are compared as text.
    """
    seen: dict[Key, _Claim] = defaultdict(_Claim)
    for survey in await survey_steady_tools(subject):
        for key, evidence in _claims(subject, survey):
            if evidence is None:
                seen[key].kept += 1
            else:
                seen[key].broken.append({"task": survey.task.id, **evidence})
    findings, named = [], set()
    for (tool, what), claim in list(seen.items()):
        # One result is sufficient evidence if the other numbers of a group equal the numbers of the rows, or if numbers
        # are always in text order.
        is_known = what == LEFT_OUT or (what == SORTED_AS_TEXTS and not seen[tool, SORTED].kept)
        fewest = 1 if is_known and claim.kept >= FEWEST else FEWEST
        if len(claim.broken) < fewest or tool in named:
            continue
        named.add(tool)
        findings.append(_report(tool, what, claim))
    return findings


def _report(tool: str, what: str, claim: _Claim) -> Finding:
    return Finding(
        rule="environment.claims",
        severity=Severity.WARNING,
        symptom=f"{tool}: {what}, in {len(claim.broken)} of {claim.kept + len(claim.broken)} results.",
        evidence={"tool": tool, "seen": claim.broken[:4]},
        change="Compute the value from the rows that the tools show, or describe what the value is.",
        confirm=AGAIN,
    )


def _claims(subject: Subject, survey: Survey) -> Iterator[tuple[Key, dict[str, Json] | None]]:
    results = survey.found()
    for one in results:
        text = get_documentation(subject, one.call.tool)
        yield from _order(one, text)
        if not _is_limited(subject, one.call.tool, text):
            yield from _own_count(one)
            yield from (((one.call.tool, LEFT_OUT), seen) for seen in find_missing_groups(survey, one, text))
    yield from _aggregates(subject, results)
    for tool in dict.fromkeys(one.call.tool for one in results):
        yield from _filters(
            subject, [one for one in survey.results if one.call.tool == tool and one.result.error is None], tool
        )


def _is_limited(subject: Subject, tool: str, text: str) -> bool:
    parameters = subject.tools[tool].schema["function"].get("parameters", {}).get("properties", {})
    return bool(_LIMITED.search(text)) or any(_PAGING & {name, *split_words(name)} for name in parameters)


def _rows(one: CallResult) -> Sequence[Row]:
    """Return the rows of a result that contains one list."""
    listings = list(one.listings.values())
    return listings[0] if len(listings) == 1 else ()


def _own_count(one: CallResult) -> Iterator[tuple[Key, dict[str, Json] | None]]:
    rows = _rows(one)
    for name, value in one.fields.items():
        words = split_words(name)
        if rows and isinstance(value, int) and not isinstance(value, bool) and words and words[-1] in _COUNTS:
            key = (one.call.tool, f"{name!r} is not the number of its rows")
            yield key, None if value == len(rows) else {"call": str(one.call), name: value, "rows": len(rows)}


def _order(one: CallResult, text: str) -> Iterator[tuple[Key, dict[str, Json] | None]]:
    rows = _rows(one)
    if len(rows) < 3:
        return
    first, by = _FIRST.search(text), _SORTED.search(text)
    if first is None and by is None:
        return
    column = _column_of(rows, (by[1] or "") if by else "", first[1] if first else "")
    if column is None:
        return
    values = [row.get(column) for row in rows]
    is_down = bool(_DOWN.search(first[0] if first else text[by.start() : by.end() + 40] if by else ""))
    orders = [_keys(values, as_text) for as_text in (False, True)]
    is_numeric = all(parse_number(value) is not None for value in values)
    sorted_as = [keys is not None and _is_sorted(keys, down=is_down) for keys in orders]
    key = (one.call.tool, SORTED_AS_TEXTS if sorted_as[1] and is_numeric else SORTED)
    is_right = sorted_as[0] or (sorted_as[1] and not is_numeric)
    yield key, None if is_right else {"call": str(one.call), column or "values": values[:12]}


def _keys(values: Sequence[Json], as_text: bool) -> list | None:
    numbers = [parse_number(value) for value in values]
    if not as_text:
        known = [one[0] for one in numbers if one is not None]
        return known if len(known) == len(values) else [str(value).casefold() for value in values]
    return [str(value) for value in values]


def _is_sorted(keys: Sequence, *, down: bool) -> bool:
    return all((one >= other) if down else (one <= other) for one, other in pairwise(keys))


def _column_of(rows: Sequence[Row], by: str, first: str) -> str | None:
    """Return the column by which rows are described as sorted, or None if the column is not clear."""
    names = [name for name in rows[0] if all(name in row and row[name] is not None for row in rows)]
    asked = split_words(by)
    if by:
        named = [name for name in names if name and set(split_words(name)) <= set(asked)]
        if len(names) == 1 and not named:
            return names[0] if asked[:1] in (("name",), ("title",), ("alphabet",)) else None
        return named[0] if named else None
    if len(names) == 1:
        # A search returns the best titles first, not in alphabetical order.
        is_text = any(parse_number(row[names[0]]) is None for row in rows)
        return None if is_text and re.match("best|most$|least|few", first) else names[0]
    if not first:
        return None
    dates = [name for name in names if all(_DATE.match(str(row[name])) for row in rows)]
    prices = [name for name in names if {"price", "cost", "fee", "rate"} & set(split_words(name))]
    if re.match("earl|old|new|lat|most rec", first):
        return dates[0] if len(dates) == 1 else None
    if re.match("cheap|dear|most exp", first):
        return prices[0] if len(prices) == 1 else None
    numbers = [name for name in names if all(parse_number(row[name]) is not None for row in rows)]
    is_amount = re.match("high|low|larg|small|big|few|long|short", first) is not None
    return numbers[0] if is_amount and len(numbers) == 1 else None


_AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "count": len, "number": len, "many": len,
    "total": sum, "sum": sum, "average": fmean, "mean": fmean, "minimum": min, "maximum": max,
    "lowest": min, "highest": max, "min": min, "max": max,
}  # fmt: skip


def _aggregates(subject: Subject, results: Sequence[CallResult]) -> Iterator[tuple[Key, dict[str, Json] | None]]:
    """Compare the numbers stated by a tool with the rows listed by another tool for the same arguments."""
    lists = {}
    for one in results:
        if _rows(one) and not _is_limited(subject, one.call.tool, get_documentation(subject, one.call.tool)):
            lists.setdefault(json.dumps(one.call.arguments, sort_keys=True), []).append(one)
    for one in results:
        for name, value in one.fields.items():
            number = parse_number(value)
            named = split_words(name) if name else split_words(one.call.tool)
            words = {
                *split_words(one.call.tool),
                *split_words(name),
                *re.findall(r"[a-z]+", _line(subject, one.call.tool)),
            }
            # A field called `number` identifies an item, and is not a count.
            kinds = [kind for kind in _AGGREGATES if kind in named and not (name and kind == "number")]
            kinds += [kind for kind in _AGGREGATES if kind in words and not name]
            for listed in lists.get(json.dumps(one.call.arguments, sort_keys=True), ()) if number and kinds else ():
                if listed.call.tool != one.call.tool and number is not None:
                    yield from _aggregated(subject, one, name, number[0], kinds[0], listed, words)


def _line(subject: Subject, tool: str) -> str:
    return str(subject.tools[tool].schema["function"].get("description", "")).lower()


def _aggregated(
    subject: Subject, one: CallResult, name: str, number: float, kind: str, listed: CallResult, words: set[str]
) -> Iterator[tuple[Key, dict[str, Json] | None]]:
    rows, compute = _rows(listed), _AGGREGATES[kind]
    about = {word for text in (listed.call.tool, _line(subject, listed.call.tool)) for word in split_words(text)}
    nouns = {word for text in words for word in split_words(text)}
    slack = 0.5 * 10.0 ** -count_decimals(one.fields[name]) + 1e-6
    columns: dict[str, list[float]] = {}
    if compute is len:
        if nouns & about - _PLAIN and len(rows) > 1:
            columns[""] = [1.0] * len(rows)
    else:
        for column in rows[0]:
            numbers = [found[0] for row in rows if (found := parse_number(row.get(column))) is not None]
            if len(numbers) == len(rows) > 1 and set(split_words(column)) & nouns:
                columns[column] = numbers
    if len(columns) != 1:
        return
    ((column, numbers),) = columns.items()
    of = repr(column) if column else "the rows"
    key = (one.call.tool, f"its {kind} is not the {kind} of {of} in {listed.call.tool}")
    is_right = abs(compute(numbers) - number) <= slack
    near = abs(compute(numbers) - number) <= 0.5 * max(abs(compute(numbers)), abs(number))
    if is_right or near:
        evidence = {
            "call": str(one.call),
            "states": number,
            "rows_give": compute(numbers),
            "listed_by": str(listed.call),
        }
        yield key, None if is_right else evidence


_PLAIN = set(
    split_words("the a an of all how there are in is and by for with what which number count total many on at to")
)


def _filters(
    subject: Subject, results: Sequence[CallResult], tool: str
) -> Iterator[tuple[Key, dict[str, Json] | None]]:
    """Compare the rows returned by a filtered call with all rows that the tool showed."""
    known = {json.dumps(row, sort_keys=True): row for one in results for row in _rows(one) if len(row) > 1}
    text = get_documentation(subject, tool)
    if len(known) < 4:
        return
    most = max(len(_rows(one)) for one in results)
    for one in results:
        tests = [_test(name, value, list(known.values()), text) for name, value in one.call.arguments.items()]
        if not tests or any(test is None for test in tests):
            continue
        own = {json.dumps(row, sort_keys=True) for row in _rows(one)}
        should = {key for key, row in known.items() if all(test(row) for test in tests if test is not None)}
        what = "an argument does not select exactly the rows that have its value"
        missing, extra = should - own, own - should
        if len(own) == most or _is_limited(subject, tool, text):
            missing = set()
        evidence = {
            "call": str(one.call),
            "left_out": [known[key] for key in sorted(missing)[:3]],
            "let_through": [known[key] for key in sorted(extra)[:3]],
        }
        if should or own:
            yield (tool, what), evidence if missing or extra else None


def _test(name: str, value: Json, rows: Sequence[Row], text: str) -> Callable[[Row], bool] | None:
    """Return a test for the rows that an argument selects according to its name, or None if the name does not show
    which rows the argument selects."""
    words = split_words(name)
    columns = {column: split_words(column) for column in rows[0] if column}
    same = [column for column, own in columns.items() if own == words]
    if len(same) == 1 and not isinstance(value, list | dict) and all(same[0] in row for row in rows):
        column = same[0]
        if isinstance(value, str) and not any(row[column] == value for row in rows):
            return None  # another spelling, or no row at all
        return lambda row: is_equal(row[column], value)
    bound = (_LOW | _HIGH) & set(words)
    rest = tuple(word for word in words if word not in _LOW | _HIGH)
    is_date = isinstance(value, str) and bool(_DATE.match(value))
    dates = [column for column in columns if is_date and all(_DATE.match(str(row.get(column))) for row in rows)]
    fitting = [column for column, own in columns.items() if rest and set(own) & set(rest)] or dates
    if len(bound) != 1 or len(fitting) != 1 or not all(fitting[0] in row for row in rows):
        return None
    return _bound(next(iter(bound)), fitting[0], value, rows, text)


def _bound(bound: str, column: str, value: Json, rows: Sequence[Row], text: str) -> Callable[[Row], bool] | None:
    """Return a test for a lower or an upper limit. Return None if the values cannot be compared, or if it is not clear
    whether the limit is inclusive."""

    def key(one: Json) -> float | str | None:
        number = parse_number(one)
        return number[0] if number is not None else str(one)[:10] if _DATE.match(str(one)) else None

    limit = key(value)
    keys = [key(row[column]) for row in rows]
    if limit is None or any(type(one) is not type(limit) for one in keys):
        return None
    is_included = bound in _ALWAYS_INCLUDED or bool(_INCLUDED.search(text))
    if _EXCLUDED.search(text) or (not is_included and limit in keys):
        return None
    if bound in _LOW:
        return lambda row: key(row[column]) >= limit  # type: ignore[operator]
    return lambda row: key(row[column]) <= limit  # type: ignore[operator]
