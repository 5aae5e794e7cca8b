"""Check the tool calls in messages that a file contains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparring.errors import DataError

_FORM = "[{'type': 'function', 'function': {'name': ..., 'arguments': {...}}}]"


def check_calls(message: Mapping[str, Any], where: str) -> None:
    """Raise DataError, which names the field, if the `tool_calls` of a message are not a list of calls of functions."""
    calls = message.get("tool_calls")
    if not calls:
        return
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise DataError(f"{where}: tool_calls is {_short(calls)}, not a list of calls; write {_FORM}.")
    for index, call in enumerate(calls):
        field = f"tool_calls[{index}]"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise DataError(f"{where}: {field} is {_short(call)}, not a call of a function; write {_FORM}.")
        if not isinstance(name := function.get("name"), str) or not name:
            raise DataError(f"{where}: {field}.function.name is {_short(name)}, not the name of a tool; write {_FORM}.")
        if not isinstance(arguments := function.get("arguments"), Mapping | str | None):
            raise DataError(
                f"{where}: {field}.function.arguments is {_short(arguments)}; write an object, or its JSON text."
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
