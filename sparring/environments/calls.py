"""Execution of one tool call, which is checked strictly, run and logged. An invalid call is answered with an error
message; the error is never raised."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sparring.chat.messages import read_json, without_half_characters
from sparring.environments.base import REPAIRS, Environment, available_tools
from sparring.errors import InfrastructureError
from sparring.runtime.plugins import call, error_text
from sparring.types import Json

_MOST_LEVELS = 100
"""The maximum nesting of lists and objects in arguments. JSON libraries support a few hundred levels."""
_CONTAINERS = (dict, list, Mapping)
"""The types of lists and objects. The types that `isinstance` recognizes fastest come first."""


class ToolError(StrEnum):
    """The kind of error that a call resulted in."""

    UNKNOWN_TOOL = "unknown_tool"
    BAD_JSON = "bad_json"
    WRONG_TYPE = "wrong_type"
    TOOL_RAISED = "tool_raised"
    FIXTURE_MISS = "fixture_miss"
    """A replayed tool was called with arguments that were not recorded."""


class ToolFailure(Exception):
    """Raise this exception in a tool to return this text to the model, as an error of this kind. The model reads it after
    `error: `, unless the text starts with `error:` itself."""

    kind = ToolError.TOOL_RAISED


@dataclass(frozen=True, slots=True)
class Observation:
    """A result that a tool may return instead of a plain value, in order to log more than the model sees."""

    content: Json
    logged: Mapping[str, Json] = field(default_factory=dict)
    """Additional entries of the call's transition, such as `reward`, next to the entries of `ToolResult.transition`."""
    repairs: Sequence[str] = ()
    """The changes that made the result readable for the model ("heat: NaN became null"). The transition has them in its
    entry `repairs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The text that the model reads, the kind of error if there is one, and the entry of the environment's own log."""

    content: str
    error: ToolError | None
    transition: Mapping[str, Json]
    """The entry {"tool", "arguments", "result", "error"}. Arguments that are not a JSON object are logged as they were
    sent."""


async def execute(environment: Environment, name: str, arguments: str | Mapping[str, Json]) -> ToolResult:
    """Call a tool with arguments given as JSON text or as parsed JSON.

    Results that are not strings are written as compact JSON. Only InfrastructureError is raised; any other exception of
    a tool is returned to the model as an error.
    """
    offered = available_tools(environment)
    if name not in offered:
        return _refused(
            name, arguments, ToolError.UNKNOWN_TOOL, f"no tool {name!r}; there are {', '.join(offered) or 'none now'}"
        )
    try:
        parsed = read_json(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        return _refused(name, arguments, ToolError.BAD_JSON, f"the arguments of {name} are not valid JSON")
    if _is_deep(parsed):
        return _refused(name, str(arguments), ToolError.BAD_JSON, f"the arguments of {name} are nested too deeply")
    if not isinstance(parsed, Mapping):
        return _refused(name, arguments, ToolError.BAD_JSON, f"the arguments of {name} are not a JSON object")
    problem = offered[name].problem_with(parsed)
    if problem is not None:
        return _refused(name, parsed, ToolError.WRONG_TYPE, problem)
    try:
        result = await call(environment.call_tool, name, parsed)
        content = _as_text(result.content if isinstance(result, Observation) else result)
    except InfrastructureError:
        raise
    except ToolFailure as error:
        return _refused(name, parsed, error.kind, str(error))
    except Exception as error:  # noqa: BLE001 (returned to the policy as an error)
        return _refused(
            name, parsed, ToolError.TOOL_RAISED, f"{name} failed: {type(error).__name__}: {error_text(error)}"
        )
    logged = dict(result.logged) if isinstance(result, Observation) else {}
    if isinstance(result, Observation) and result.repairs:
        logged[REPAIRS] = list(result.repairs)
    return ToolResult(content=content, error=None, transition={**logged, **_transition(name, parsed, content, None)})


def _refused(name: str, arguments: Json, error: ToolError, text: str) -> ToolResult:
    content = without_half_characters(text if text.startswith("error:") else f"error: {text}")
    return ToolResult(content=content, error=error, transition=_transition(name, arguments, content, error))


def _transition(name: str, arguments: Json, content: str, error: ToolError | None) -> dict[str, Json]:
    return {"tool": name, "arguments": arguments, "result": content, "error": None if error is None else error.value}


def _as_text(result: object) -> str:
    if not isinstance(result, str):
        result = json.dumps(result, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return without_half_characters(result)


def _is_deep(value: Json) -> bool:
    level = [value]
    for _ in range(_MOST_LEVELS):
        inside = [one.values() if isinstance(one, Mapping) else one for one in level if isinstance(one, _CONTAINERS)]
        if not inside:
            return False
        level = [child for children in inside for child in children]
    return bool(level)
