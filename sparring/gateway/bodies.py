"""Reads the bodies of requests. What a stranger sends is counted before it is parsed, so that no request takes much time
or memory."""

from __future__ import annotations

import asyncio
import json
from typing import final

import orjson
from starlette.requests import Request

from sparring.chat.messages import depth, read_json
from sparring.gateway.request import ApiError
from sparring.rewards.reports import is_handed_over, to_plain
from sparring.types import Json

MOST_VALUES = 40_000
"""The maximum number of values in the JSON of a request: strings, numbers, lists and so on."""
MOST_REPORTED_VALUES = 400_000
"""The same for a report, which may contain the state of an environment."""
MOST_KEYS = 1_000
"""The maximum number of keys in one object of a request."""
LARGE_BODY_BYTES = 256 * 1024
"""The size from which bodies are parsed in another thread."""
SECONDS = 60.0
"""The time limit for a body to arrive."""
_MAX_LEVELS = 254

_MEDIA_TYPES = ("application/json", "application/octet-stream")
"""The accepted content types of bodies. AWS's clients use the second for a body that is passed through. Types that a
web page may send to any server without a preflight request, such as text/plain or none, are not accepted."""


async def read_body(request: Request, max_bytes: int, *, most_values: int = MOST_VALUES) -> bytes:
    """Return the body of a request. Raises ApiError 415 for a body of another content type, 413 if it is too large, and
    408 if it does not arrive in time."""
    body, values = bytearray(), _ValueCount()
    try:
        async with asyncio.timeout(SECONDS):
            async for part in request.stream():
                body.extend(part)
                values.add(part)
                if len(body) > max_bytes:
                    raise _too_large(f"larger than {max_bytes} bytes; shorten the messages")
                if values.num > most_values:
                    raise _too_large(f"JSON with more than {most_values} values; shorten its lists")
    except TimeoutError as error:
        raise ApiError(
            408, f"The body did not arrive within {SECONDS:g} s; send it faster.", code="request_timeout"
        ) from error
    if body:
        _check_media_type(request)
    return bytes(body)


def _too_large(how: str) -> ApiError:
    return ApiError(413, f"The body is {how}.", code="body_too_large")


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in _MEDIA_TYPES:
        raise ApiError(
            415,
            f"content-type: {media_type[:80]!r} is not supported; send application/json.",
            code="unsupported_media_type",
            param="content-type",
            given=media_type,
        )


@final
class _ValueCount:
    """Counts the values in a JSON text that arrives in parts, without parsing it.

    The count is that of commas and opening brackets outside of strings. It is an upper bound of what a parser creates
    until an error, except for one value.
    """

    def __init__(self) -> None:
        self.num = 0
        self._is_in_string = False
        self._begun = b""
        """The backslash at the end of the last part, which escapes the first byte of the next one."""

    def add(self, part: bytes) -> None:
        text = (self._begun + part).replace(b"\\\\", b"")
        self._begun = b"\\" if text.endswith(b"\\") else b""
        pieces = text.replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[self._is_in_string :: 2])
        self.num += sum(map(outside.count, (b",", b"[", b"{")))
        self._is_in_string ^= len(pieces) % 2 == 0


def decode_report(body: bytes) -> Json:
    """Parse a report. Raises ApiError 400, in the same cases as `decode`, except for what the agent hands over: it may
    contain what the policy wrote, so numbers that are not finite, lone surrogates and deep nesting are replaced there."""
    try:
        return decode(body)
    except ApiError:
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise
        parts = {key: to_plain(value) for key, value in content.items() if is_handed_over(key)}
        return decode(json.dumps({**content, **parts}).encode())


def decode(body: bytes) -> Json:
    """Parse a body. Raises ApiError 400. This includes JSON that is valid but cannot be processed or sent back in an
    answer: deeply nested JSON, a lone surrogate, or a number too large for a float."""
    try:
        decoded = read_json(body)
    except ValueError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from error
    if body.count(b"[") + body.count(b"{") > _MAX_LEVELS:
        try:
            orjson.dumps(decoded)
        except orjson.JSONEncodeError as error:  # orjson writes only 254 levels, and no integer beyond 64 bits
            if depth(decoded) > _MAX_LEVELS:
                raise ApiError(
                    400, f"The body is nested deeper than {_MAX_LEVELS} levels; flatten it.", code="invalid_json"
                ) from error
    return decoded


def check_keys(value: Json) -> None:
    """Raises ApiError 413 if an object of a decoded body has too many keys, each of which validation would report."""
    level = [value]
    while level:
        if any(len(one) > MOST_KEYS for one in level if isinstance(one, dict)):
            raise _too_large(f"JSON with more than {MOST_KEYS} keys in one object")
        children = [one.values() if isinstance(one, dict) else one for one in level]
        level = [child for one in children for child in one if isinstance(child, dict | list)]
