"""Encode as JSON any value that an environment may produce. The content never causes an error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

_MOST_LEVELS = 200
"""The largest nesting of lists and objects. Deeper values are written as "...". orjson itself stops at 254 levels."""
_MOST_BITS = 1024
"""The largest size of integers, in bits. It is larger than that of any float."""
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def encode(value: Any, *, indent: bool = False) -> bytes:
    """Encode as JSON in UTF-8. NaN and infinities become null. A value that JSON cannot represent is replaced by its
    repr."""
    options = _OPTIONS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        return orjson.dumps(value, default=repr, option=options)
    except TypeError:
        # Lone surrogates, integers beyond 64 bits (written exactly, as in the standard library), and values nested too
        # deeply.
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
        # Python converts longer integers only in base 16.
        return value if value.bit_length() <= _MOST_BITS else hex(value)
    if isinstance(value, Mapping | Sequence) and not isinstance(value, bytes | bytearray):
        if not levels:
            return "..."
        if isinstance(value, Mapping):
            return {_plain(str(key), 1): _plain(item, levels - 1) for key, item in value.items()}
        return [_plain(item, levels - 1) for item in value]
    return repr(value)
