"""Parse TOML of any origin within a bounded time, and refuse what nothing can use: deep nesting and huge numbers."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from sparring.runtime.json_values import depth

MAX_BYTES = 4 * 2**20
MAX_LEVELS = 50
"""The maximum number of levels of tables and lists, and of parts of a key."""
_LONG_KEY = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_LEVELS}}}""", re.ASCII
)
_TOO_DEEP = f"it is nested deeper than {MAX_LEVELS} levels"


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises ValueError with the reason, which is `tomllib.TOMLDecodeError` for text
    that is not TOML."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"it has {len(text):,} characters, and the limit is {MAX_BYTES:,}")
    if _LONG_KEY.search(text):  # the time to parse one grows with the square of its length
        raise ValueError(f"a key has more than {MAX_LEVELS} parts")
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if depth(tables) > MAX_LEVELS:
        raise ValueError(_TOO_DEEP)
    return tables
