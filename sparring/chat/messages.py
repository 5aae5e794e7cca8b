"""The parts of a chat message as plain text and plain JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence

import orjson

from sparring.runtime.json_values import is_too_deep, parse_json
from sparring.types import Json, Message


def content_text(content: Json) -> str:
    """Return content as one string. None becomes "", text parts are joined, and all other parts are kept as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(part["text"] if _is_text(part) else canonical_json(part) for part in content)
    return canonical_json(content)


def without_half_characters(text: str) -> str:
    """Return a string that UTF-8 can encode. Lone surrogates become "?": JSON and Python allow them, but tokenizers do
    not."""
    return text.encode("utf-8", "replace").decode("utf-8")


def read_json(text: str | bytes) -> Json:
    """Return the value of a JSON text, with exact integers. Raises ValueError for everything that a strict parser
    rejects: NaN, a number that is too large for a float, a lone surrogate, or a thousand levels of nesting."""
    value = orjson.loads(text)
    if _LONG_NUMBER in (text.encode() if isinstance(text, str) else text).translate(_DIGITS_AS_ZEROS):
        # orjson has checked the text, but converts integers beyond 64 bits to floats.
        return parse_json(text)
    return value


_DIGITS_AS_ZEROS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(128)) + b" " * 128
_LONG_NUMBER = b"0" * 19
"""The number of digits of 2**63."""


def json_bytes(value: Json) -> bytes:
    """Return the JSON of a value, with exact integers and with the keys in their original order. Infinities and NaN
    become null."""
    try:
        return orjson.dumps(value)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def json_text(value: Json) -> str:
    return json_bytes(value).decode()


def canonical_json(value: Json) -> str:
    """Return the same string for equal JSON values."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # as in `json_bytes`
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def call_name_and_arguments(call: Mapping[str, Json]) -> tuple[str, Json]:
    """Return the name and arguments of an OpenAI tool call. Arguments given as JSON text are parsed, missing or empty
    arguments become {}, and all others are returned unchanged."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if arguments in (None, ""):
        arguments = {}
    elif isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            parsed = read_json(arguments)
            arguments = arguments if is_too_deep(parsed, arguments) else parsed
    return str(function.get("name", "")), arguments


def plain(message: Message) -> dict[str, Json]:
    """Return a message as chat templates expect it: the content is a string, arguments are parsed, and Sparring's own
    keys are left out."""
    result = {key: value for key, value in message.items() if key not in ("malformed_tool_calls", "tool_calls")}
    result["content"] = without_half_characters(content_text(message.get("content")))
    if message.get("tool_calls"):
        result["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    return result


def _plain_call(call: Mapping[str, Json]) -> dict[str, Json]:
    name, arguments = call_name_and_arguments(call)
    return {"id": call.get("id", ""), "type": "function", "function": {"name": name, "arguments": arguments}}


def _is_text(part: Json) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)
