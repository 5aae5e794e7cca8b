"""Scripted policies for own agents. They know of the environment only what an agent sends to them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence

from sparring.agents.scripted import Asked, ScriptedPolicy
from sparring.checks.evidence.arguments import list_schema_values
from sparring.types import Json, Message, ToolSchema

EXPLORER = "explorer"
CALLS_PER_TOOL = 3
_MOST_WORDS = 40
_UNKNOWN = "tool_that_does_not_exist"


def make_explorer() -> ScriptedPolicy:
    """Return a policy that calls each offered tool up to three times with arguments that the schema permits, one call a
    turn, and then answers with the last result."""
    return ScriptedPolicy(EXPLORER, _explore)


def _explore(asked: Asked) -> Message:
    made = [(call["name"], call["arguments"]) for call in _calls(asked.messages)]
    for num_before, tool in itertools.product(range(CALLS_PER_TOOL), asked.tools):
        name = tool["function"]["name"]
        if sum(one == name for one, _ in made) > num_before:
            continue
        for arguments in itertools.islice(_list_arguments(tool, asked), 40):
            text = json.dumps(arguments)
            if (name, text) not in made:
                return _call(name, text)
    return {"content": _last_result(asked.messages) or "I do not know."}


def make_repeater() -> ScriptedPolicy:
    """Return a policy that makes the same legal call in every turn and never answers."""

    def act(asked: Asked) -> Message:
        for tool in asked.tools:
            for arguments in _list_arguments(tool, asked):
                return _call(tool["function"]["name"], json.dumps(arguments))
        return {"content": "Please wait."}

    return ScriptedPolicy("repeater", act)


BAD_CALLS: Mapping[str, Message] = {
    "a tool that is not offered": {"tool_calls": [{"function": {"name": _UNKNOWN, "arguments": "{}"}}]},
    "arguments that are not JSON": {"tool_calls": [{"function": {"name": "", "arguments": '{"a": '}}]},
    "a missing argument": {"tool_calls": [{"function": {"name": "", "arguments": "{}"}}]},
    "an argument that the schema does not have": {
        "tool_calls": [{"function": {"name": "", "arguments": '{"no_such_argument": [null]}'}}]
    },
}
"""Calls that models make, by what is wrong with them. An empty name stands for the first offered tool."""


def make_bad_caller(what: str) -> ScriptedPolicy:
    """Return a policy that makes one of BAD_CALLS and then answers."""

    def act(asked: Asked) -> Message:
        if asked.turn or not asked.tools:
            return {"content": "I do not know."}
        call = BAD_CALLS[what]["tool_calls"][0]["function"]
        return _call(call["name"] or asked.tools[0]["function"]["name"], call["arguments"])

    return ScriptedPolicy(f"makes a call with {what}", act)


def make_answerer(text: str, *, name: str) -> ScriptedPolicy:
    """Return a policy that answers every request with the same text."""
    return ScriptedPolicy(name, lambda _: {"content": text})


def _call(name: str, arguments: str) -> Message:
    return {"content": "", "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]}


def _calls(messages: Sequence[Message]) -> list[Mapping[str, Json]]:
    return [
        call["function"]
        for message in messages
        if message.get("role") == "assistant"
        for call in message.get("tool_calls") or ()
    ]


def _last_result(messages: Sequence[Message]) -> str:
    results = [message.get("content") for message in messages if message.get("role") == "tool"]
    return str(results[-1]) if results else ""


def _list_arguments(tool: ToolSchema, asked: Asked) -> Iterator[Mapping[str, Json]]:
    """Yield arguments that the schema permits, the likeliest first: values of the task's fields with the same name, then
    words of the conversation, then arbitrary values."""
    schema: Mapping[str, Json] = tool["function"].get("parameters") or {}
    properties: Mapping[str, Mapping[str, Json]] = schema.get("properties") or {}
    required = list(schema.get("required") or properties)
    if not required:
        yield {}
        return
    words = _words(asked.messages)
    choices = [_list_values(name, properties.get(name) or {}, asked, words) for name in required]
    longest = max(map(len, choices))
    for index in range(longest):
        yield {name: values[index % len(values)] for name, values in zip(required, choices, strict=True)}


def _list_values(name: str, schema: Mapping[str, Json], asked: Asked, words: Sequence[str]) -> list[Json]:
    named = [asked.task.fields[name]] if name in asked.task.fields else []
    own = list_schema_values(schema) if schema.get("type") or schema.get("enum") or schema.get("anyOf") else []
    if schema.get("enum") or "const" in schema:
        return own
    if schema.get("type") in ("integer", "number"):
        numbers = [int(word) for word in words if word.isdigit() and len(word) < 10]
        return [*(one for one in named if isinstance(one, int | float)), *numbers, *own] or [1]
    if schema.get("type") in ("array", "object", "boolean"):
        return own or [None]
    fields = [one for one in asked.task.fields.values() if isinstance(one, str) and one in " ".join(words)]
    return list(dict.fromkeys([*(one for one in named if isinstance(one, str)), *fields, *words, *own])) or ["example"]


def _words(messages: Sequence[Message]) -> list[str]:
    """Return words of the user's messages and of results that look like names or keys, then the others."""
    texts = [str(message.get("content") or "") for message in messages if message.get("role") in ("user", "tool")]
    words = list(dict.fromkeys(word for text in texts for word in re.findall(r"[\w@.\-]*\w", text)))
    return sorted(words, key=lambda word: not re.search(r"[\d@_A-Z-]", word))[:_MOST_WORDS]
