"""The limits in a tool's schema and description, with values at the limits and one step inside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from sparring.checks.evidence.arguments import split_words
from sparring.types import Json, ToolSchema

Limit: TypeAlias = tuple[str, Json, Json]
"""An argument, its last allowed value, and a value that is one step inside the limit."""
_RANGE = re.compile(r"\b(?:from |between )?(-?\d+) ?(?:to|and|through|-|–|up to) ?(-?\d+)\b")
_LONGEST = 2_000


def list_limits(schema: ToolSchema) -> Iterator[Limit]:
    """Yield the limits of each argument: from its schema, or from a range in the descriptions."""
    function = schema["function"]
    for name, part in function.get("parameters", {}).get("properties", {}).items():
        kind = part.get("type")
        low, high = part.get("minimum"), part.get("maximum")
        if kind == "integer" and low is None and high is None:
            low, high = _find_written(name, str(part.get("description", "")), str(function.get("description", "")))
        if kind == "integer" and low is not None and high is not None and high - low > 2:
            yield from ((name, int(low), int(low) + 1), (name, int(high), int(high) - 1))
        longest = part.get("maxLength")
        if kind == "string" and isinstance(longest, int) and 2 < longest <= _LONGEST and not part.keys() & _FORMED:
            yield name, _make_text(longest), _make_text(longest - 1)


def list_choices(schema: ToolSchema) -> Iterator[Limit]:
    """Yield the values that the description of an argument lists, such as `one of 'day', 'gate' or 'price'`, each with
    another listed value."""
    for name, part in schema["function"].get("parameters", {}).get("properties", {}).items():
        is_open = part.get("type") == "string" and "enum" not in part
        match = _CHOICES.search(str(part.get("description", ""))) if is_open else None
        choices = re.findall(_QUOTED, match[0]) if match is not None else []
        yield from ((name, choice[1:-1], choices[index - 1][1:-1]) for index, choice in enumerate(choices))


_QUOTED = r"[`'\"][^`'\"]{1,30}[`'\"]"
_CHOICES = re.compile(rf"{_QUOTED}(?:, {_QUOTED})*,? (?:or|and) {_QUOTED}")
_FORMED = {"pattern", "format", "enum"}


def _make_text(length: int) -> str:
    """Return a string that consists of words and has the given number of characters."""
    return ("five words of plain text " * (length // 24 + 1))[: length - 1].ljust(length - 1, "x") + "x"


def _find_written(name: str, own: str, about: str) -> tuple[int | None, int | None]:
    """Return a range in the description of an argument, or after its name in the description of the tool."""
    match = _RANGE.search(own)
    if match is None:
        words = "|".join(map(re.escape, split_words(name)))
        near = (
            re.search(rf"(?i)\b(?:{words})s?\b(?: is| are| from| between|:)? ?(?={_RANGE.pattern})", about)
            if words
            else None
        )
        match = _RANGE.search(about, near.end()) if near is not None else None
    return (None, None) if match is None else (int(match[1]), int(match[2]))
