"""Conversion between Gymnasium's spaces and JSON: the schema of an action, an action from JSON, and an observation as
text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from sparring.errors import UsageError
from sparring.types import Json

MAX_NUMBERS = 512
"""The maximum number of values in an observation that is written as text. Images have more."""

_ESCAPED = re.compile(r"\x1b\[[\d;]*m([^\x1b]*)\x1b\[0m")
_SUPPORTED = "Text, Discrete, MultiDiscrete, MultiBinary, Box, and Dict and Tuple of these"


def action_schema(space: spaces.Space[Any]) -> dict[str, Json]:
    """Return the JSON schema of a space's members, including their bounds. Raises UsageError for a space without a
    schema."""
    if isinstance(space, spaces.Text):
        letters = "".join(re.escape(letter) for letter in sorted(space.character_set))
        return {
            "type": "string",
            "minLength": space.min_length,
            "maxLength": space.max_length,
            "pattern": f"^[{letters}]*$",
        }
    if isinstance(space, spaces.Discrete):
        return _number("integer", space.start, space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return _array(
            lambda place: _number("integer", space.start[place], (space.start + space.nvec - 1)[place]), space.shape
        )
    if isinstance(space, spaces.MultiBinary):
        return _array(lambda _: _number("integer", 0, 1), space.shape)
    if isinstance(space, spaces.Box):
        kind = "integer" if np.issubdtype(space.dtype, np.integer) else "number"
        return _array(lambda place: _number(kind, space.low[place], space.high[place]), space.shape)
    if isinstance(space, spaces.Dict):
        parts = {name: action_schema(part) for name, part in space.spaces.items()}
        return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    if isinstance(space, spaces.Tuple):
        return _tuple([action_schema(part) for part in space.spaces])
    raise UsageError(
        f"actions of {space} have no JSON schema; only {_SUPPORTED} are supported. Wrap the environment with "
        "gymnasium.wrappers.TransformAction."
    )


def action_from_json(space: spaces.Space[Any], value: Json) -> Any:
    """Return the space's member that a JSON value of its schema represents."""
    if isinstance(space, spaces.Dict):
        return {name: action_from_json(part, value[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(action_from_json(part, item) for part, item in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Text):
        return value
    return space.dtype.type(value) if isinstance(space, spaces.Discrete) else np.asarray(value, dtype=space.dtype)


def as_text(observation: Any) -> str:
    """Return an observation as text for the model. Text is returned unchanged; any other observation becomes compact
    JSON (with NaN and Infinity if needed).

    Raises TypeError for a value that JSON cannot represent.
    """
    if isinstance(observation, str):
        return observation
    return json.dumps(_as_json(observation), ensure_ascii=False, separators=(",", ":"))


def without_colors(drawing: str) -> str:
    """Return a terminal rendering as plain text, with brackets around the parts that were highlighted in color."""
    return _ESCAPED.sub(r"[\1]", drawing).strip("\n")


def is_writable(space: spaces.Space[Any]) -> bool:
    """Return whether an observation can be written with at most MAX_NUMBERS numbers."""
    return isinstance(space, spaces.Text) or (space.is_np_flattenable and spaces.flatdim(space) <= MAX_NUMBERS)


def _as_json(observation: Any) -> Json:
    if isinstance(observation, dict):
        return {str(name): _as_json(part) for name, part in observation.items()}
    if isinstance(observation, tuple | list):
        return [_as_json(part) for part in observation]
    if isinstance(observation, np.ndarray) and observation.ndim:
        return [_as_json(part) for part in observation]
    if isinstance(observation, np.ndarray):
        observation = observation[()]
    if isinstance(observation, np.floating):
        # 0.1 as float32 is 0.10000000149 as float64, so a number is written with the digits of its own type.
        return float(str(observation))
    return observation.item() if isinstance(observation, np.generic) else observation


def _number(kind: str, low: Any, high: Any) -> dict[str, Json]:
    bounds = {
        "minimum": low.item() if hasattr(low, "item") else low,
        "maximum": high.item() if hasattr(high, "item") else high,
    }
    return {"type": kind, **{name: bound for name, bound in bounds.items() if math.isfinite(bound)}}


def _array(schema_at: Callable[[tuple[int, ...]], dict[str, Json]], shape: Sequence[int]) -> dict[str, Json]:
    """Return the schema of nested arrays of this shape. `schema_at` returns the schema of one element. A shape without
    axes represents a single number."""

    def part(place: tuple[int, ...]) -> dict[str, Json]:
        depth = len(place)
        if depth == len(shape):
            return schema_at(place)
        return _tuple([part((*place, index)) for index in range(shape[depth])])

    return part(())


def _tuple(parts: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Return the schema of an array with exactly these elements. The schema has a short form if all elements have equal
    schemas."""
    bounds = {"type": "array", "minItems": len(parts), "maxItems": len(parts)}
    if parts and all(part == parts[0] for part in parts):
        return {**bounds, "items": parts[0]}
    return {**bounds, "prefixItems": list(parts)}
