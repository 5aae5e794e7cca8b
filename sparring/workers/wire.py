"""What goes through the pipe to a worker process: values as JSON in frames, and errors, each given back as what it was."""

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
from sparring.errors import UsageError
from sparring.plugins import text_of
from sparring.types import Json, Outcome, Reward, Sampling, Score, StopReason, Task, Trajectory, Turn, Usage

_CLASSES: Mapping[str, type] = {
    one.__name__: one
    for one in (Observation, Outcome, Reward, Sampling, Score, StopReason, Task, Trajectory, Turn, Usage)
}
_SCALARS = frozenset({str, int, float, bool, type(None)})
_MARK = "@"
"""The key of an object that stands for something JSON has no form for: {"@": [what, content]}."""
_LENGTH_BYTES = 8


def frame(value: Any) -> bytes:
    """A value of JSON and of the classes above, tuples and keys of any kind among them, with its length before it.

    Raises TypeError for anything else, in the words of `json.dumps`.
    """
    content = json.dumps(_marked(value), separators=(",", ":")).encode()
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def sendable(value: Json, returned_by: str) -> Json:
    """The value. Raises UsageError for one that `frame` does not take, with the place and the type of what is odd in it."""
    for path, odd in _odd(value, ""):
        raise UsageError(
            f"{returned_by} returned {odd!r:.60}, a {type(odd).__name__}, {f'at {path}' if path else 'as a whole'}. JSON has no "
            "form for it, so it cannot leave a worker process; return text (str, isoformat()), a number, a list or a dict in its "
            "place, or set environment.workers = 0."
        )
    return value


def _odd(value: object, path: str) -> Iterator[tuple[str, object]]:
    """What `frame` does not take, with its place: `orders[0].placed`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _odd(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _odd(item, f"{path}[{index}]")
    elif value is not None and not isinstance(value, str | int | float) and type(value) not in _CLASSES.values():
        yield path, value


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next value. Raises EOFError or ConnectionError when the other side is gone, ValueError for what is no value."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    content = await reader.readexactly(length)
    try:
        return json.loads(content, object_hook=_unmarked)
    except (LookupError, TypeError) as error:
        raise ValueError(f"no value that was sent by `frame`: {error!r}") from error


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
        return value  # of a class derived from these, which JSON writes as its base
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


def outcome(came_of_it: object) -> dict[str, Json]:
    """What came of a call, a value or the exception that it raised, for `result_of`."""
    if not isinstance(came_of_it, BaseException):
        return {"value": came_of_it}
    known = [one.__name__ for one in type(came_of_it).__mro__ if one.__module__ == errors.__name__]
    told = {
        "name": type(came_of_it).__name__, "text": text_of(came_of_it), "repr": repr(came_of_it),
        # The problems of a recipe come as their text.
        "known": next((name for name in known if name != errors.ConfigError.__name__), None),
        "kind": came_of_it.kind.value if isinstance(came_of_it, ToolFailure) else None,
        "traceback": "".join(traceback.format_exception(came_of_it)),
    }  # fmt: skip
    return {"error": told}


def outcome_frame(head: Mapping[str, Json], came_of_it: object) -> bytes:
    """The frame of a message with an outcome. What cannot be sent becomes the error that says so."""
    try:
        return frame({**head, **outcome(came_of_it)})
    except Exception as error:  # noqa: BLE001 (user code may make what cannot even be looked at)
        return frame({**head, **outcome(error)})


def result_of(message: Mapping[str, Any]) -> Any:
    """The value of an outcome. Raises what was raised: an error of Sparring or a ToolFailure as such, any other under its
    name and with its text."""
    if "error" not in message:
        return message["value"]
    error = message["error"]
    if error["known"] is not None:
        raised = getattr(errors, error["known"])(error["text"])
    else:
        base, more = (Exception, {}) if error["kind"] is None else (ToolFailure, {"kind": ToolError(error["kind"])})
        says = {"__str__": lambda _: error["text"], "__repr__": lambda _: error["repr"]}
        raised = type(error["name"], (base,), {**says, **more})()
    raised.add_note(f"In the worker process:\n{error['traceback']}")
    raise raised
