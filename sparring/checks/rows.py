"""What tools return as rows and fields: lists of objects, objects, tables and lines of text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from sparring.checks.arguments import named_lines
from sparring.types import Json

_NUMBER = re.compile(r"(?:[$€£]\s*|[A-Z]{3} )?(-?\d+(?:,\d{3})*(?:\.\d+)?)\s*([A-Za-z%€$£°/]{0,8})")
_SHORT = 60
"""Characters of a part of a text that is one of a list."""


def parsed(content: str) -> Json:
    """A result as JSON, where it is that; otherwise the text."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content


def fields_in(value: Json) -> dict[str, Json]:
    """The scalars of an object by name, those of inner objects by their own; "" for a result that is one scalar itself."""
    if isinstance(value, Mapping):
        found: dict[str, Json] = {}
        for name, item in value.items():
            if isinstance(item, Mapping):
                found = {**{key: one for key, one in fields_in(item).items() if key}, **found}
            elif not isinstance(item, list):
                found[str(name)] = item
        return found
    if isinstance(value, str):
        found = dict(named_lines(value))
        is_record = len(found) > 1 and len(found) == len([one for one in value.splitlines() if one.strip()])
        return {**found} if is_record else {"": value}
    return {} if value is None or isinstance(value, list) else {"": value}


def listings_in(value: Json) -> dict[str, list[dict[str, Json]]]:
    """The lists in a result by name, as rows; a list of scalars has rows of one field named ""."""
    if isinstance(value, list):
        return {"": [_row(one) for one in value]}
    if isinstance(value, Mapping):
        found: dict[str, list[dict[str, Json]]] = {}
        for name, item in value.items():
            if isinstance(item, list):
                found[str(name)] = [_row(one) for one in item]
            elif isinstance(item, Mapping) and item and all(isinstance(one, Mapping) for one in item.values()):
                found[str(name)] = [{"": key, **fields_in(one)} for key, one in item.items()]
        if value and not found and all(isinstance(one, Mapping) for one in value.values()):
            return {"": [{"": key, **fields_in(one)} for key, one in value.items()]}
        return found
    if isinstance(value, str):
        table = _table(value)
        if table:
            return {"": table}
        parts = list(_parts(value))
        return {"": [{"": one} for one in parts]} if len(parts) > 1 else {}
    return {}


def number_of(value: Json) -> tuple[float, str] | None:
    """A number and its unit, of a number or of a text that is no more than that."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value), ""
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    return None if match is None else (float(match[1].replace(",", "")), match[2].lower())


def is_equal(one: Json, other: Json) -> bool:
    """Whether two scalars say the same: 1, 1.0 and "1" do."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other or str(one).lower() == str(other).lower()
    if isinstance(one, int | float) or isinstance(other, int | float):
        first, second = number_of(one), number_of(other)
        return first is not None and second is not None and abs(first[0] - second[0]) < 1e-9
    return one == other


def decimals(value: Json) -> int:
    """Digits after the point, as a value is written."""
    match = re.search(r"\.(\d+)", str(value))
    return len(match[1]) if match is not None and match[1] != "0" else 0


def _row(value: Json) -> dict[str, Json]:
    if isinstance(value, Mapping):
        return fields_in(value)
    if isinstance(value, list):
        return {str(index): one for index, one in enumerate(value) if not isinstance(one, list | dict)}
    return {"": value}


def _table(text: str) -> list[dict[str, Json]]:
    """The rows of a text that is a table with a header."""
    lines = [one.strip().strip("|") for one in text.strip().splitlines() if one.strip()]
    mark = next((mark for mark in ("|", "\t", ",", ";") if lines and lines[0].count(mark)), None)
    cells = [[cell.strip(' *`"') for cell in one.split(mark)] for one in lines if not set(one) <= set("-|:+ ")]
    if mark is None or len(cells) < 2 or len({len(one) for one in cells}) > 1 or (mark == "," and len(cells) < 3):
        return []
    header, *rows = cells
    return [dict(zip(header, one, strict=True)) for one in rows] if len(set(header)) == len(header) else []


def _parts(text: str) -> Iterator[str]:
    """The parts of a text that lists short things: a line each, or apart by commas."""
    lines: Sequence[str] = [one.strip(" -*•\t") for one in text.strip().splitlines() if one.strip()]
    parts = lines if len(lines) > 1 else [one.strip() for one in text.strip(" .").split(",")]
    if all(0 < len(one) <= _SHORT and not one.endswith((".", ":")) for one in parts):
        yield from parts
