"""Functions that change the tool calls of scripts (the policy's messages in an episode)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparring.environments import answer, tool_call
from sparring.types import Json, Message


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, represented by its name and arguments."""

    tool: str
    arguments: Mapping[str, Json]

    def __str__(self) -> str:
        return f"{self.tool}({', '.join(f'{name}={json.dumps(value)}' for name, value in self.arguments.items())})"


@dataclass(frozen=True, slots=True)
class Action:
    """One call of a script, with its position: the index of the message, and the index of the call in the message."""

    message: int
    place: int
    tool: str
    arguments: Mapping[str, Json]

    @property
    def call(self) -> Call:
        """The call without its position."""
        return Call(self.tool, self.arguments)


def actions_of(script: Sequence[Message]) -> list[Action]:
    """Return the calls of a script in order, except those whose arguments are not a JSON object."""
    found = []
    for number, message in enumerate(script):
        for place, one in enumerate(message.get("tool_calls") or ()):
            read = _read(one["function"]["arguments"])
            if isinstance(read, Mapping):
                found.append(Action(number, place, one["function"]["name"], read))
    return found


def left_out(script: Sequence[Message], actions: Sequence[Action]) -> tuple[Message, ...]:
    """Return the script without these calls."""
    return edited(script, {(one.message, one.place): () for one in actions})


def edited(script: Sequence[Message], edits: Mapping[tuple[int, int], Sequence[Call]]) -> tuple[Message, ...]:
    """Return a script with the calls at these (message, call) positions replaced. A message whose calls are all removed is
    dropped."""
    changed: list[Message] = []
    for number, message in enumerate(script):
        calls = []
        for place, one in enumerate(message.get("tool_calls") or ()):
            if (number, place) not in edits:
                calls.append(one)
            for other in edits.get((number, place), ()):
                calls += tool_call(other.tool, **other.arguments)["tool_calls"]
        if not message.get("tool_calls"):
            changed.append(message)
        elif calls:
            changed.append({**message, "tool_calls": calls})
    return tuple(changed) or (answer("Done."),)


def _read(arguments: Json) -> Json:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None
