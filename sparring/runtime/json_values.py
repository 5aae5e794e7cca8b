"""Parse JSON of any origin, and measure its nesting."""

from __future__ import annotations

import json
from typing import Any

from sparring.types import Json

MAX_DEPTH = 200
"""The maximum nesting depth of arguments of a call and of rows of data. Comparing, rendering and storing them recurses."""


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return the value of a JSON text, as `json.loads` does. Raises ValueError, also if it is nested too deeply to be
    parsed."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_too_deep(value: Json, text: str) -> bool:
    """Return whether a value is nested deeper than MAX_DEPTH. `text` is the JSON of the value."""
    return text.count("[") + text.count("{") > MAX_DEPTH and depth(value) > MAX_DEPTH


def depth(value: Json) -> int:
    """Return the nesting depth of lists and objects."""
    levels, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        levels += 1
        level = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]
    return levels
