"""The messages between the pool and its workers. Frames contain values as JSON, and exceptions, which are raised again
on the other side."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from sparring import errors
from sparring.environments.calls import Observation, ToolError, ToolFailure
from sparring.errors import InfrastructureError, SparringError, UsageError
from sparring.runtime.plugins import error_text
from sparring.types import Json, Outcome, Reward, Sampling, Score, StopReason, Task, Trajectory, Turn, Usage

_CLASSES: Mapping[str, type] = {
    one.__name__: one
    for one in (Observation, Outcome, Reward, Sampling, Score, StopReason, Task, Trajectory, Turn, Usage)
}
_SCALARS = frozenset({str, int, float, bool, type(None)})
_MARK = "@"
"""The key of an object that represents a value without a JSON form: {"@": [kind, content]}."""
_LENGTH_BYTES = 8
_MOST_BYTES = 2**32
"""The largest content of a frame. A larger length is not one that `frame` wrote."""


def frame(value: Any) -> bytes:
    """Encode a JSON value, prefixed with its length. The value may contain the classes listed above, tuples, and keys
    of any type.

    Raises TypeError for anything else, with the message of `json.dumps`.
    """
    return prefix_length(json.dumps(_marked(value), separators=(",", ":")).encode())


def check_sendable(value: Json, returned_by: str) -> Json:
    """Return the value. Raises UsageError with the path and the type of a part that `frame` cannot encode."""
    for path, odd in _odd(value, ""):
        raise UsageError(
            f"{returned_by} returned {odd!r:.60}, a {type(odd).__name__}, {f'at {path}' if path else 'as a whole'}. JSON cannot "
            "represent it, so it cannot leave the worker process. Return text (str, isoformat()), a number, a list or "
            "a dict instead, or set environment.workers = 0."
        )
    return value


def _odd(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield each part that `frame` cannot encode, with its path, such as `orders[0].placed`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _odd(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _odd(item, f"{path}[{index}]")
    elif value is not None and not isinstance(value, str | int | float) and type(value) not in _CLASSES.values():
        yield path, value


def prefix_length(content: bytes) -> bytes:
    """Return the frame with this content."""
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


async def receive_content(reader: asyncio.StreamReader, *, most_bytes: int = _MOST_BYTES) -> bytes:
    """Return the content of the next frame. Raises EOFError or OSError if the other side has exited, and ValueError for
    a frame that is too large."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if length > most_bytes:
        raise ValueError(f"a frame of {length} bytes is too large; at most {most_bytes} are accepted here")
    return await reader.readexactly(length)


async def receive(reader: asyncio.StreamReader, *, most_bytes: int = _MOST_BYTES) -> Any:
    """Return the next value. Raises EOFError or OSError if the other side has exited, and ValueError for invalid
    content."""
    content = await receive_content(reader, most_bytes=most_bytes)
    try:
        return json.loads(content, object_hook=_unmarked)
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a value sent by `frame`: {error!r}") from error


async def receive_object(reader: asyncio.StreamReader, *, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """Return the next value, which is an object. Raises the errors of `receive`."""
    value = await receive(reader, most_bytes=most_bytes)
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__} is not a message")
    return value


def _marked(value: Any) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if _CLASSES.get(kind.__name__) is kind:
        if isinstance(value, Enum):
            return {_MARK: [kind.__name__, value.value]}
        return {_MARK: [kind.__name__, {one.name: _marked(getattr(value, one.name)) for one in fields(value)}]}
    if isinstance(value, list | tuple):
        # Token ids and their log-probabilities are most of a trajectory.
        items = list(value) if _SCALARS.issuperset(map(type, value)) else [_marked(item) for item in value]
        return {_MARK: ["tuple", items]} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        if _MARK not in value and all(isinstance(key, str) for key in value):
            return {key: _marked(item) for key, item in value.items()}
        return {_MARK: ["dict", [[_marked(key), _marked(item)] for key, item in value.items()]]}
    if isinstance(value, str | int | float):
        return value  # a subclass of these, which JSON writes as its base class
    raise TypeError(f"Object of type {kind.__name__} is not JSON serializable")


def _unmarked(value: dict[str, Any]) -> Any:
    if _MARK not in value:
        return value
    kind, content = value[_MARK]
    match kind:
        case "tuple":
            return tuple(content)
        case "dict":
            return dict(content)
    found = _CLASSES[kind]
    return found(content) if issubclass(found, Enum) else found(**content)


def encode_outcome(came_of_it: object) -> dict[str, Json]:
    """Return a call's result or exception as a message for `decode_result`."""
    if not isinstance(came_of_it, BaseException):
        return {"value": came_of_it}
    known = [one.__name__ for one in type(came_of_it).__mro__ if one.__module__ == errors.__name__]
    fields = {
        "name": type(came_of_it).__name__,
        "text": error_text(came_of_it),
        "repr": repr(came_of_it),
        # Errors of a recipe's settings are sent as text.
        "known": next((name for name in known if name != errors.ConfigError.__name__), None),
        "kind": came_of_it.kind.value if isinstance(came_of_it, ToolFailure) else None,
        "traceback": "".join(traceback.format_exception(came_of_it)),
    }
    return {"error": fields}


def frame_outcome(head: Mapping[str, Json], came_of_it: object) -> bytes:
    """Return the frame of a message with an outcome. A value that cannot be sent is replaced by the error."""
    try:
        return frame({**head, **encode_outcome(came_of_it)})
    except Exception as error:  # noqa: BLE001 (user code may produce objects that raise when they are inspected)
        return frame({**head, **encode_outcome(error)})


def decode_result(message: Mapping[str, Any]) -> Any:
    """Return the value of an outcome, or raise its exception.

    Sparring's errors and ToolFailure are raised unchanged. Any other exception is raised as an instance of a new class
    with the same name and text. Raises InfrastructureError for a message that `encode_outcome` did not return.
    """
    try:
        if "error" not in message:
            return message["value"]
        raised = _decode_error(message["error"])
    except (LookupError, TypeError, ValueError, AttributeError) as odd:
        raise InfrastructureError(
            f"a worker process got or sent {message!r:.200}, which has no value and no error that Sparring knows ({odd!r}). Its "
            "episode is run again. Check that the code in the worker writes into no descriptor that it did not open."
        ) from odd
    raise raised


def _decode_error(error: Mapping[str, Any]) -> Exception:
    text, shown = str(error["text"]), str(error["repr"])
    if error["known"] is not None:
        known = getattr(errors, error["known"])
        if not issubclass(known, SparringError):
            raise ValueError(f"{error['known']} is not an error of Sparring")
        raised: Exception = known(text)
    else:
        base, more = (Exception, {}) if error["kind"] is None else (ToolFailure, {"kind": ToolError(error["kind"])})
        raised = type(error["name"], (base,), {"__str__": lambda _: text, "__repr__": lambda _: shown, **more})()
    raised.add_note(f"In the worker process:\n{error['traceback']}")
    return raised
