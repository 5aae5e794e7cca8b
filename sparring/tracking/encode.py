"""Values as bytes of JSON, whatever an environment put into them: writing must never fail for its content."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

_MOST_LEVELS = 200
"""Of lists and objects in each other; what lies deeper is written as "...". orjson itself goes no deeper than 254."""
_MOST_BITS = 1024
"""Of integers: more than any float has."""
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def encode(value: Any, *, indent: bool = False) -> bytes:
    """JSON in UTF-8. NaN and infinities become null; what JSON has no form for becomes its repr."""
    options = _OPTIONS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        return orjson.dumps(value, default=repr, option=options)
    except TypeError:
        # Lone surrogates, integers beyond 64 bits (exact, as the standard library writes them), and what is nested too deeply.
        separators = None if indent else (",", ":")
        return json.dumps(
            _plain(value, _MOST_LEVELS),
            ensure_ascii=False,
            allow_nan=False,
            indent=2 if indent else None,
            separators=separators,
        ).encode()


def encode_line(value: Any) -> bytes:
    return encode(value) + b"\n"


def _plain(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Longer ones Python writes in base 16 alone.
        return value if value.bit_length() <= _MOST_BITS else hex(value)
    if isinstance(value, Mapping | Sequence) and not isinstance(value, bytes | bytearray):
        if not levels:
            return "..."
        if isinstance(value, Mapping):
            return {_plain(str(key), 1): _plain(item, levels - 1) for key, item in value.items()}
        return [_plain(item, levels - 1) for item in value]
    return repr(value)
