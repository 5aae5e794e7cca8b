"""Results of tools as rows and fields: from lists of objects, objects, tables and lines of text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from sparring.checks.evidence.arguments import find_named_lines
from sparring.types import Json

_NUMBER = re.compile(r"(?:[$€£]\s*|[A-Z]{3} )?(-?\d+(?:,\d{3})*(?:\.\d+)?)\s*([A-Za-z%€$£°/]{0,8})")
_SHORT = 60
"""The maximum length of an item in a string that is a list."""


def parse_result(content: str) -> Json:
    """Return a result as parsed JSON if it is JSON, and otherwise as text."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content


def find_fields(value: Json) -> dict[str, Json]:
    """Return the scalars of an object, keyed by name. Scalars in nested objects keep their own names. The name of a
    result that is a single scalar is ""."""
    if isinstance(value, Mapping):
        found: dict[str, Json] = {}
        for name, item in value.items():
            if isinstance(item, Mapping):
                found = {**{key: one for key, one in find_fields(item).items() if key}, **found}
            elif not isinstance(item, list):
                found[str(name)] = item
        return found
    if isinstance(value, str):
        found = dict(find_named_lines(value))
        is_record = len(found) > 1 and len(found) == len([one for one in value.splitlines() if one.strip()])
        return {**found} if is_record else {"": value}
    return {} if value is None or isinstance(value, list) else {"": value}


def find_listings(value: Json) -> dict[str, list[dict[str, Json]]]:
    """Return the lists in a result as rows, keyed by name. Each item of a list of scalars becomes a row with one field
    named ""."""
    if isinstance(value, list):
        return {"": [_parse_row(one) for one in value]}
    if isinstance(value, Mapping):
        found: dict[str, list[dict[str, Json]]] = {}
        for name, item in value.items():
            if isinstance(item, list):
                found[str(name)] = [_parse_row(one) for one in item]
            elif isinstance(item, Mapping) and item and all(isinstance(one, Mapping) for one in item.values()):
                found[str(name)] = [{"": key, **find_fields(one)} for key, one in item.items()]
        if value and not found and all(isinstance(one, Mapping) for one in value.values()):
            return {"": [{"": key, **find_fields(one)} for key, one in value.items()]}
        return found
    if isinstance(value, str):
        table = _parse_table(value)
        if table:
            return {"": table}
        parts = list(_split_parts(value))
        return {"": [{"": one} for one in parts]} if len(parts) > 1 else {}
    return {}


def parse_number(value: Json) -> tuple[float, str] | None:
    """Return the number and the unit of a value that is a number, or a text that contains only a number and a unit.
    Return None for other values."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value), ""
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    return None if match is None else (float(match[1].replace(",", "")), match[2].lower())


def is_equal(one: Json, other: Json) -> bool:
    """Return True if two scalars have the same meaning, such as 1, 1.0 and "1"."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other or str(one).lower() == str(other).lower()
    if isinstance(one, int | float) or isinstance(other, int | float):
        first, second = parse_number(one), parse_number(other)
        return first is not None and second is not None and abs(first[0] - second[0]) < 1e-9
    return one == other


def count_decimals(value: Json) -> int:
    """Return the number of digits that are written after the decimal point of a value."""
    match = re.search(r"\.(\d+)", str(value))
    return len(match[1]) if match is not None and match[1] != "0" else 0


def _parse_row(value: Json) -> dict[str, Json]:
    if isinstance(value, Mapping):
        return find_fields(value)
    if isinstance(value, list):
        return {str(index): one for index, one in enumerate(value) if not isinstance(one, list | dict)}
    return {"": value}


def _parse_table(text: str) -> list[dict[str, Json]]:
    """Return the rows of a string that is a table with a header, or an empty list if it is not one."""
    lines = [one.strip().strip("|") for one in text.strip().splitlines() if one.strip()]
    mark = next((mark for mark in ("|", "\t", ",", ";") if lines and lines[0].count(mark)), None)
    cells = [[cell.strip(' *`"') for cell in one.split(mark)] for one in lines if not set(one) <= set("-|:+ ")]
    if mark is None or len(cells) < 2 or len({len(one) for one in cells}) > 1 or (mark == "," and len(cells) < 3):
        return []
    header, *rows = cells
    return [dict(zip(header, one, strict=True)) for one in rows] if len(set(header)) == len(header) else []


def _split_parts(text: str) -> Iterator[str]:
    """Yield the items of a string that lists short strings, one per line or separated by commas."""
    lines: Sequence[str] = [one.strip(" -*•\t") for one in text.strip().splitlines() if one.strip()]
    parts = lines if len(lines) > 1 else [one.strip() for one in text.strip(" .").split(",")]
    if all(0 < len(one) <= _SHORT and not one.endswith((".", ":")) for one in parts):
        yield from parts
