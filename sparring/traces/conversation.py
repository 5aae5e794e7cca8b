"""The one shape of a logged conversation, whatever format the log had."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparring.chat.messages import MAX_DEPTH, call_name_and_arguments, canonical_json, depth, read_json
from sparring.errors import DataError
from sparring.types import Json, Message, ToolSchema

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class LeftOut(Exception):
    """A conversation that is read but cannot be used. The text is the reason, which is the same for all such
    conversations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall:
    """One tool call with the result that the model read."""

    tool: str
    arguments: Mapping[str, Json]
    result: str

    @property
    def key(self) -> str:
        """A string that is the same for equal calls."""
        return canonical_json([self.tool, self.arguments])


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A logged conversation. Messages are in the OpenAI shape, with parsed arguments and the call ids of sessions."""

    where: str
    """The file and the row, for messages to the user."""
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    """The tools that the log lists; empty if it lists none."""
    is_good: bool | None = None
    """The mark of the conversation, or None without a mark."""
    id: str | None = None

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages before the first one of the assistant."""
        first = next(index for index, message in enumerate(self.messages) if message["role"] == "assistant")
        return self.messages[:first]

    @property
    def answers(self) -> tuple[str, ...]:
        """The assistant's messages without calls, in order."""
        return tuple(
            one["content"] for one in self.messages if one["role"] == "assistant" and not one.get("tool_calls")
        )

    @property
    def replies(self) -> tuple[str, ...]:
        """The user's messages after the opening."""
        later = self.messages[len(self.opening) :]
        return tuple(one["content"] for one in later if one["role"] == "user")

    @property
    def num_turns(self) -> int:
        return sum(one["role"] == "assistant" for one in self.messages)

    @property
    def calls(self) -> tuple[LoggedCall, ...]:
        """The calls, in order."""
        results = {one["tool_call_id"]: one["content"] for one in self.messages if one["role"] == "tool"}
        functions = [(call["id"], call["function"]) for one in self.messages for call in one.get("tool_calls", ())]
        return tuple(
            LoggedCall(tool=function["name"], arguments=function["arguments"], result=results[id])
            for id, function in functions
        )


def read_messages(raw: Any, where: str) -> tuple[Message, ...]:
    """Return logged messages in one form. The calls of the last message may lack results.

    Raises DataError, which contains `where`, for something that is not a list of messages, and LeftOut for messages that
    cannot be used.
    """
    if not isinstance(raw, list) or not raw:
        raise DataError(
            f"{where}: {_short(raw)} is not a list of messages; give [{{'role': ..., 'content': ...}}, ...]."
        )
    messages: list[Message] = []
    open_calls: dict[str, str] = {}
    num_turns = 0
    for place, one in enumerate(raw, start=1):
        if not isinstance(one, Mapping) or one.get("role") not in _ROLES:
            raise DataError(
                f"{where}: message {place} is {_short(one)}; give an object whose `role` is one of {', '.join(_ROLES)}."
            )
        role = _ROLES[one["role"]]
        if role == "tool":
            messages.append(_result(one, open_calls, f"{where}: message {place}"))
            continue
        if open_calls:
            raise LeftOut("a call has no logged result")
        message: dict[str, Json] = {"role": role, "content": _text(one.get("content"))}
        if role == "assistant":
            if isinstance(one.get("reasoning_content"), str) and one["reasoning_content"]:
                message["reasoning_content"] = one["reasoning_content"]
            calls = list(_calls(one, num_turns, f"{where}: message {place}"))
            if calls:
                message["tool_calls"] = [call for _, call in calls]
                open_calls = {given: call["id"] for given, call in calls}
            num_turns += 1
        messages.append(message)
    return tuple(messages)


def require_usable(messages: Sequence[Message]) -> None:
    """Raise LeftOut unless the messages open with a user's message and end with an answer of the assistant."""
    roles = [message["role"] for message in messages]
    if "assistant" not in roles or roles[-1] != "assistant" or messages[-1].get("tool_calls"):
        raise LeftOut("it does not end with an answer of the assistant")
    if "user" not in roles[: roles.index("assistant")]:
        raise LeftOut("it has no message of a user before the first answer")
    if any(not text.strip() for text in (one["content"] for one in messages if one["role"] == "user")):
        raise LeftOut("a message of the user is blank")
    if not messages[-1]["content"].strip():
        raise LeftOut("its last answer is blank")


def require_strict(value: Json, where: str) -> None:
    """Raise DataError, which contains `where`, for a value that JSON files cannot hold: NaN, half a character, or nesting
    of more than MAX_DEPTH levels."""
    if depth(value) > MAX_DEPTH:
        raise DataError(f"{where}: it is nested deeper than {MAX_DEPTH} levels; correct it, or remove it.")
    try:
        read_json(json.dumps(value))
    except ValueError as error:
        raise DataError(f"{where}: it is not strict JSON ({error}); correct it, or remove it.") from error


def read_tools(raw: Any, where: str) -> tuple[ToolSchema, ...]:
    """Return logged tools in the OpenAI shape. Raises DataError, which contains `where`, for anything else."""
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise DataError(f"{where}: the tools are {_short(raw)}; give a list of tools in the OpenAI format.")
    tools = []
    for one in raw:
        function = one.get("function", one) if isinstance(one, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise DataError(
                f"{where}: {_short(one)} is not a tool; give {{'type': 'function', 'function': {{'name': ...}}}}."
            )
        parameters = function.get("parameters") or function.get("input_schema") or {"type": "object", "properties": {}}
        if not isinstance(parameters, Mapping):
            raise DataError(f"{where}: the parameters of a tool are {_short(parameters)}; give a JSON schema.")
        parameters = {"type": "object", **parameters}
        description = str(function.get("description") or "")
        tools.append(
            {
                "type": "function",
                "function": {"name": function["name"], "description": description, "parameters": parameters},
                **({"annotations": one["annotations"]} if isinstance(one.get("annotations"), Mapping) else {}),
            }
        )
    return tuple(tools)


def prefix_digests(messages: Sequence[Message]) -> Iterator[bytes]:
    """Yield a digest of each prefix of the messages, the shortest first. The last one is the digest of all."""
    digest = hashlib.sha256()
    for message in messages:
        digest.update(canonical_json(dict(message)).encode("utf-8", "surrogatepass"))
        yield digest.digest()


def _text(content: Any) -> str:
    """Return the text of a message. Raises LeftOut for content other than text."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        parts = [
            part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, str | Mapping)
        ]
        if len(parts) == len(content) and all(isinstance(part, str) for part in parts):
            return "".join(part for part in parts if part is not None)
    raise LeftOut("a message has content other than text")


def _calls(message: Mapping[str, Any], turn: int, where: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield each call of an assistant's message, with its logged id."""
    if message.get("function_call"):
        raise LeftOut("it uses `function_call`, which `tool_calls` has replaced")
    raw = message.get("tool_calls") or ()
    if not isinstance(raw, list | tuple) or not all(isinstance(call, Mapping) for call in raw):
        raise DataError(f"{where}: tool_calls = {_short(raw)} is not a list of calls; give OpenAI's format.")
    for index, call in enumerate(raw):
        name, arguments = call_name_and_arguments(call)
        if not name or not isinstance(call["function"]["name"], str):
            raise DataError(
                f"{where}: the call {_short(call)} names no function; give {{'function': {{'name': ...}}}}."
            )
        if not isinstance(arguments, Mapping):
            raise LeftOut("the arguments of a call are not a JSON object")
        own = f"call_{turn}_{index}"
        function = {"name": name, "arguments": dict(arguments)}
        yield str(call.get("id") or own), {"id": own, "type": "function", "function": function}


def _result(message: Mapping[str, Any], open_calls: dict[str, str], where: str) -> Message:
    given = message.get("tool_call_id")
    if given is None and len(open_calls) == 1:
        given = next(iter(open_calls))
    own = open_calls.pop(str(given), None)
    if own is None:
        raise LeftOut("a tool result belongs to no call")
    content = message.get("content")
    # Some loggers store the result itself instead of its text.
    is_text = content is None or isinstance(content, str | list)
    try:
        text = _text(content) if is_text else json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    except LeftOut:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return {"role": "tool", "tool_call_id": own, "content": text}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
