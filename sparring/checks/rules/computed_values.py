"""Rule on computed values: tools that compute numbers and times from the task's own rows must use the correct rows and
read them correctly."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise
from statistics import fmean

from sparring.checks.evidence.returned_rows import count_decimals, parse_number
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import CallResult, Survey, get_documentation, survey_steady_tools
from sparring.checks.evidence.task_rows import Row, find_tables
from sparring.findings import Finding, Severity
from sparring.types import Json

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
FEWEST = 2
"""The number of results that must be wrong in the same way before the rule reports it."""
FEWEST_READ = 3
"""The number of rows whose text a tool must read correctly before other rows are reported as misread."""
_MISSING = {"999", "9999", "99999", "-1", "-9", "-99", "-999", "-9999", "-99999"}
"""Numbers that stand for a missing value if they are far from all others."""
_FREE = re.compile(r"\b(?:free|available|vacant|open|unbooked|possible|bookable|no appointment|not taken)\b")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::\d\d)?")
_UNITS = (
    ("t", "kg", "g", "mg", "mcg", "µg", "lb", "oz"),
    ("km", "m", "cm", "mm", "mi", "ft"),
    ("h", "min", "s"),
    ("l", "cl", "ml", "gal"),
)
_NAMES = {
    "t": "ton(?:ne)?s?", "kg": "kilo(?:gram(?:me)?)?s?", "g": "gram(?:me)?s?", "lb": "pounds?", "oz": "ounces?",
    "km": "kilomet(?:er|re)s?", "m": "met(?:er|re)s?", "cm": "centimet(?:er|re)s?", "mi": "miles?", "ft": "foot|feet",
    "h": "hours?", "min": "minutes?", "s": "seconds?", "l": "lit(?:er|re)s?", "ml": "millilit(?:er|re)s?", "gal": "gallons?",
}  # fmt: skip
"""Names of units that differ from their symbols."""
_NUMBER = re.compile(r"(?<![A-Za-z\d])-?\d+(?:\.\d+)?")
"""Digits that are not part of a name such as H12."""


async def computed(subject: Subject) -> Iterable[Finding]:
    """What tools compute from the task's own rows is correct.

    The rule warns if a mean, a sum, a minimum or a maximum of a column includes numbers that stand for missing values
    (-999, 9999). It also warns if times that a tool offers as free fall within an entry of the task's calendar. In
    addition, it warns if a result follows from the number in a text field of the row (`3 days`) in most rows, but not
    in rows where the text is written differently (`1 day`). The same applies if the result is the bare number although
    rows have different units (`2 t`, `300 kg`). The unit may be in another column if the tool's description names a
    unit of the same kind. To fix such a tool, leave out missing values, compare both starts and ends, convert units,
    and raise an error on text that cannot be parsed instead of continuing with 0.
    """
    seen: dict[tuple[str, str, str], list[dict[str, Json]]] = defaultdict(list)
    surveys = await survey_steady_tools(subject)
    for survey in surveys:
        for one in survey.found():
            for what, change, evidence in (*_with_missing(survey, one), *_taken(subject, survey, one)):
                seen[one.call.tool, what, change].append({"task": survey.task.id, "call": str(one.call), **evidence})
    findings = [
        _finding(f"{tool} {what}, in {len(shown)} results.", {"tool": tool, "seen": shown[:4]}, change)
        for (tool, what, change), shown in seen.items()
        if len(shown) >= FEWEST
    ]
    return [*findings, *_misread(subject, surveys)]


def _finding(symptom: str, evidence: Mapping[str, Json], change: str) -> Finding:
    return Finding(
        rule="environment.computed",
        severity=Severity.WARNING,
        symptom=symptom,
        evidence=evidence,
        change=change,
        confirm=AGAIN,
    )


def _with_missing(survey: Survey, one: CallResult) -> Iterator[tuple[str, str, dict[str, Json]]]:
    """Yield findings on results that are computed from a column and include numbers that stand for missing values."""
    stated = [found[0] for value in one.fields.values() if (found := parse_number(value)) is not None]
    for path, rows in find_tables(survey.task.fields) if stated else ():
        chosen = _chosen(one, rows)
        for column in rows[0] if len(chosen) > 1 else ():
            numbers = [
                row[column]
                for row in chosen
                if isinstance(row.get(column), int | float) and not isinstance(row[column], bool)
            ]
            missing = _missing(numbers)
            real = [number for number in numbers if number not in missing]
            if not missing or len(real) < 2:
                continue
            for kind, compute in (("mean", fmean), ("sum", sum), ("minimum", min), ("maximum", max)):
                for number in stated:
                    if _is_near(number, compute(numbers)) and not _is_near(number, compute(real)):
                        what = f"includes {missing[0]:g}, which stands for a missing value, in the {kind} of {column!r}"
                        evidence = {"states": number, "without_it": compute(real), "table": ".".join(path)}
                        yield what, "Leave out numbers that stand for missing values before computing.", evidence
                        return


def _is_near(stated: float, exact: float) -> bool:
    return abs(stated - exact) <= 0.5 * 10.0 ** -count_decimals(stated) + 1e-9


def _chosen(one: CallResult, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a table that contain the texts in a call's arguments, or all rows if the arguments contain no
    texts."""
    named = [value for value in one.call.arguments.values() if isinstance(value, str)]
    if len(named) < len(one.call.arguments):
        return []
    return [row for row in rows if all(any(str(cell) == value for cell in row.values()) for value in named)]


def _missing(numbers: Sequence[float]) -> list[float]:
    """Return the numbers of a column that stand for a missing value: common placeholders that are far from all other
    numbers."""
    for number in dict.fromkeys(numbers):
        others = [one for one in numbers if one != number]
        if f"{number:g}" not in _MISSING or len(others) < 2:
            continue
        spread = max(max(others) - min(others), 1.0)
        gap = min(abs(number - max(others)), abs(number - min(others)))
        if gap > 2 * spread and (number > max(others) or number < min(others)) and abs(number) >= 99:
            return [number]
    return []


def _taken(subject: Subject, survey: Survey, one: CallResult) -> Iterator[tuple[str, str, dict[str, Json]]]:
    """Yield findings on times that are offered as free but fall within an entry of the task's data."""
    listed = [
        value for rows in one.listings.values() for row in rows for value in row.values() if isinstance(value, str)
    ]
    if len(listed) < 2 or not _FREE.search(get_documentation(subject, one.call.tool)):
        return
    for path, rows in find_tables(survey.task.fields):
        for begin, end, spans in _spans(_chosen_or_all(one, rows)):
            unit = 60.0 if max(stop for _, stop in spans) <= 24 else 1.0
            times = {text: _minutes(text) for text in listed}
            known = {text: minutes / unit for text, minutes in times.items() if minutes is not None}
            if len(known) < len(listed) or {start for start, _ in spans} & set(known.values()):
                continue
            inside = [(text, span) for text, at in known.items() for span in spans if span[0] < at < span[1]]
            if inside:
                text, (start, stop) = inside[0]
                yield (
                    f"offers times inside entries of the task's {'.'.join(path)!r}, which begin earlier and are not "
                    f"over",
                    "Leave out every time before the end of an entry that begins before it.",
                    {"offered": text, "entry": {begin: start, end: stop}, "answer": one.result.content[:200]},
                )
                return


def _chosen_or_all(one: CallResult, rows: Sequence[Row]) -> Sequence[Row]:
    return _chosen(one, rows) or rows


def _minutes(value: Json) -> float | None:
    """Return the minutes after midnight of a time written as text, or None if the value is not a time."""
    match = _CLOCK.fullmatch(value.strip()) if isinstance(value, str) else None
    return None if match is None else 60.0 * int(match[1]) + int(match[2])


def _at(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else _minutes(value)


def _spans(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[tuple[float, float]]]]:
    """Yield pairs of columns that are starts and ends, or starts and lengths, of entries that do not overlap."""
    columns = {
        name: values
        for name in rows[0]
        if len(values := [at for row in rows if (at := _at(row.get(name))) is not None]) == len(rows)
    }
    for first, begins in columns.items():
        for second, others in columns.items():
            if first == second:
                continue
            for ends in (others, [begin + length for begin, length in zip(begins, others, strict=True)]):
                spans = sorted(zip(begins, ends, strict=True))
                apart = all(one[1] <= other[0] for one, other in pairwise(spans))
                if apart and all(begin < end for begin, end in spans) and max(ends) <= 24 * 60:
                    yield first, second, spans


def _misread(subject: Subject, surveys: Sequence[Survey]) -> Iterator[Finding]:
    """Yield findings on results that follow from the number in a text of their row only if the text has the usual
    format."""
    series: dict[tuple[str, str, str, str], list[tuple[str, bool, dict[str, Json]]]] = defaultdict(list)
    for survey in surveys:
        for one in survey.found():
            row = _row_of(survey, one)
            texts = {**row, **_with_units(row, get_documentation(subject, one.call.tool))}
            for name, stated in one.fields.items():
                for column, text in texts.items():
                    if not isinstance(text, str) or len(found := _NUMBER.findall(text)) != 1 or len(text) > 40:
                        continue
                    shown = {
                        "task": survey.task.id,
                        "call": str(one.call),
                        column: text,
                        "answer": one.result.content[:200],
                    }
                    for how, expected in _expected(row, float(found[0])):
                        is_right = str(stated) == expected or (
                            (number := parse_number(stated)) is not None and not how and number[0] == float(found[0])
                        )
                        series[one.call.tool, name, column, how].append((_shape(text), is_right, shown))
    named: set[str] = set()
    for (tool, _, column, how), seen in series.items():
        units = _mixed_units(seen) if not how and tool not in named else None
        if units is not None:
            named.add(tool)
            yield _finding(
                f"{tool} returns the number in {column!r} unconverted, whether it is in {units[0]} or in {units[1]}.",
                {"tool": tool, "seen": [units[2], units[3]]},
                "Convert values that are stored in several units into the unit of the tool.",
            )
        right = {shape for shape, is_right, _ in seen if is_right}
        # If numbers in one unit are right, numbers in another unit of this kind must be converted.
        kinds = {kind for shape in right if (kind := _kind(_unit_of(shape)))}
        seen = [one for one in seen if one[1] or _kind(_unit_of(one[0])) not in kinds]
        wrong = {shape for shape, is_right, _ in seen if not is_right}
        num_right = sum(is_right for _, is_right, _ in seen)
        values = {str(shown["answer"]) for _, is_right, shown in seen if is_right}
        rest = [shown for _, is_right, shown in seen if not is_right]
        if tool in named or right & wrong or num_right < FEWEST_READ or len(values) < FEWEST_READ or len(rest) < FEWEST:
            continue
        named.add(tool)
        right_text = next(str(shown[column]) for _, is_right, shown in seen if is_right)
        yield _finding(
            f"{tool} reads the number in {column!r}{how} if it is written as {right_text!r} ({num_right} results), "
            f"but not if it is written as {rest[0][column]!r} ({len(rest)} results).",
            {"tool": tool, "misread": rest[:4]},
            "Parse every form that the data has, and fail on text that cannot be parsed.",
        )


def _mixed_units(seen: Sequence[tuple[str, bool, dict[str, Json]]]) -> tuple[str, str, Json, Json] | None:
    """Return two units of the same kind whose numbers the tool returns without a unit, and a result for each unit."""
    by_unit: dict[str, list[Json]] = defaultdict(list)
    for shape, is_right, shown in seen:
        unit = _unit_of(shape)
        if is_right and not re.search(rf"\d ?{re.escape(unit)}\b", str(shown["answer"])):
            by_unit[unit].append(shown)
    for kind in _UNITS:
        known = [unit for unit in kind if len(by_unit.get(unit, ())) >= FEWEST]
        if len(known) > 1:
            return known[0], known[1], by_unit[known[0]][0], by_unit[known[1]][0]
    return None


def _unit_of(shape: str) -> str:
    return shape.removeprefix("9").removeprefix(".9").strip()


def _kind(unit: str) -> tuple[str, ...] | None:
    return next((kind for kind in _UNITS if unit in kind), None)


def _with_units(row: Row, text: str) -> dict[str, str]:
    """Return the only number in a row with the unit from another column, if a text names a unit of the same kind."""
    numbers = [name for name, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    kinds = [(str(value), kind) for value in row.values() if (kind := _kind(str(value))) is not None]
    if len(numbers) != 1 or len(kinds) != 1:
        return {}
    ((unit, kind),) = kinds
    words = [*(one for one in kind if len(one) > 1), *(_NAMES[one] for one in kind if one in _NAMES)]
    is_named = re.search(rf"\b(?:{'|'.join(words)})\b", text)
    return {numbers[0]: f"{row[numbers[0]]} {unit}"} if is_named else {}


def _row_of(survey: Survey, one: CallResult) -> Row:
    """Return the only row of the task's data that a call names."""
    named = {value for value in one.call.arguments.values() if isinstance(value, str)}
    for _, rows in find_tables(survey.task.fields) if len(named) == 1 else ():
        own = [row for row in rows if named & {str(cell) for cell in row.values()}]
        if len(own) == 1:
            return own[0]
    return {}


def _expected(row: Row, number: float) -> Iterator[tuple[str, str]]:
    """Yield results that may follow from the number in a text. They are the number itself, and each date of the row
    plus that number of days."""
    yield "", f"{number:g}"
    for name, value in row.items():
        try:
            day = date.fromisoformat(str(value)) if isinstance(value, str) else None
        except ValueError:
            continue
        if day is not None and abs(number) <= 1000:
            yield f" as days after {name!r}", (day + timedelta(days=int(number))).isoformat()


def _shape(text: str) -> str:
    """Return the format of a string: the string with each number replaced by 9."""
    return re.sub(r"\d+", "9", text)
