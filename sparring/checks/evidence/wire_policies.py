"""Scripted policies for own agents. They know of the environment only what an agent sends to them."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence

from sparring.agents.scripted import Asked, ScriptedPolicy
from sparring.checks.evidence.arguments import list_schema_values
from sparring.types import Json, Message, ToolSchema

EXPLORER = "explorer"
CALLS_PER_TOOL = 8
"""The number of calls of each tool that the explorer makes in one turn."""
_MOST_SINGLE = 6
_MOST_WORDS = 40
_UNKNOWN = "tool_that_does_not_exist"
FAILED = re.compile(
    r"error|unknown|no such|not found|invalid|not available|does not exist|cannot|failed", re.IGNORECASE
)
"""What results of calls contain that did not work."""
_COMMON = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "by", "do", "does", "find", "for", "from", "give", "has", "have", "how", "i", "in",
    "is", "it", "its", "me", "my", "of", "on", "or", "please", "say", "shows", "tell", "than", "that", "the", "then", "there",
    "they", "this", "to", "what", "when", "where", "which", "who", "will", "with", "you", "your", "answer",
})  # fmt: skip
"""Words of prompts that are hardly ever a name or a key."""


def make_explorer(most_turns: int) -> ScriptedPolicy:
    """Return a policy that calls each offered tool with likely arguments, and then answers with the last result.

    It first makes one call of each of the first six tools, one a turn. It then makes several calls in one turn, with other
    arguments that the schemas permit; then, twice, with arguments that have worked. So a call sees the effects of earlier
    calls. It answers within `most_turns` turns, because many agents fail when a turn is refused: with fewer turns, it leaves
    out the last calls first, then calls of single tools.
    """
    return ScriptedPolicy(EXPLORER, functools.partial(_explore, most_turns))


def _explore(most_turns: int, asked: Asked) -> Message:
    tools = list(asked.tools)
    num_single = min(len(tools), _MOST_SINGLE, max(0, most_turns - 2))
    if asked.turn and asked.turn >= most_turns - 1:
        calls = []
    elif asked.turn < num_single:
        calls = _list_calls(tools[asked.turn : asked.turn + 1], asked, 1)
    elif asked.turn == num_single:
        calls = _list_calls(tools, asked, CALLS_PER_TOOL)
    elif asked.turn < num_single + 3:
        calls = _list_calls(tools, asked, CALLS_PER_TOOL // 2, worked=_worked(asked.messages))
    else:
        calls = []
    if not calls:
        return {"content": _last_result(asked.messages) or "I do not know."}
    return {"content": "", "tool_calls": calls}


def _list_calls(
    tools: Sequence[ToolSchema], asked: Asked, most: int, worked: Mapping[str, Sequence[Json]] | None = None
) -> list[Message]:
    """Return up to `most` different calls of each tool. The arguments that have `worked` come first."""
    calls = []
    for tool in tools:
        arguments = [json.dumps(one) for one in itertools.islice(_list_arguments(tool, asked, worked or {}), 4 * most)]
        calls += [_one_call(tool["function"]["name"], text) for text in list(dict.fromkeys(arguments))[:most]]
    return calls


def _worked(messages: Sequence[Message]) -> dict[str, list[Json]]:
    """Return the arguments of calls whose results report no failure, by name. All of them also stand under ""."""
    results = {str(one.get("tool_call_id")): str(one.get("content")) for one in messages if one.get("role") == "tool"}
    found: dict[str, list[Json]] = {}
    for message in messages:
        for call in message.get("tool_calls") or () if message.get("role") == "assistant" else ():
            if FAILED.search(results.get(str(call.get("id")), "error")):
                continue
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:
                continue  # an example in the agent's own prompt
            for name, value in arguments.items() if isinstance(arguments, dict) else ():
                found.setdefault(name, []).append(value)
                found.setdefault("", []).append(value)
    return found


def make_repeater() -> ScriptedPolicy:
    """Return a policy that makes the same legal call in every turn and never answers."""

    def act(asked: Asked) -> Message:
        calls = _list_calls(asked.tools[:1], asked, 1)
        return {"content": "", "tool_calls": calls} if calls else {"content": "Please wait."}

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
    return {"content": "", "tool_calls": [_one_call(name, arguments)]}


def _one_call(name: str, arguments: str) -> Message:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _last_result(messages: Sequence[Message]) -> str:
    results = [message.get("content") for message in messages if message.get("role") == "tool"]
    return str(results[-1]) if results else ""


def _list_arguments(
    tool: ToolSchema, asked: Asked, worked: Mapping[str, Sequence[Json]]
) -> Iterator[Mapping[str, Json]]:
    """Yield arguments that the schema permits, the likeliest first: those that have worked, values of the task's fields with
    the same name, words of the conversation, and then arbitrary values."""
    schema: Mapping[str, Json] = tool["function"].get("parameters") or {}
    given = schema.get("properties") or {}
    properties = {
        name: one if isinstance(one, Mapping) else {} for name, one in given.items()
    }  # `true` permits everything
    required = list(schema.get("required") or properties)
    if not required:
        yield {}
        return
    words = _words(asked.messages)
    choices = [_list_values(name, properties.get(name) or {}, asked, words, worked) for name in required]
    for index in range(max(map(len, choices))):
        yield {name: values[index % len(values)] for name, values in zip(required, choices, strict=True)}


def _list_values(
    name: str, schema: Mapping[str, Json], asked: Asked, words: Sequence[str], worked: Mapping[str, Sequence[Json]]
) -> list[Json]:
    known = [*worked.get(name, ()), *([asked.task.fields[name]] if name in asked.task.fields else [])]
    own = list_schema_values(schema) if schema.get("type") or schema.get("enum") or schema.get("anyOf") else []
    if schema.get("enum") or "const" in schema:
        return own
    if schema.get("type") in ("integer", "number"):
        numbers = [int(word) for word in words if word.isdigit() and len(word) < 10]
        return [*(one for one in known if isinstance(one, int | float)), *numbers, *own] or [1]
    if schema.get("type") in ("array", "object", "boolean"):
        return own or [None]
    fields = [one for one in asked.task.fields.values() if isinstance(one, str) and one in " ".join(words)]
    texts = [one for one in (*known, *worked.get("", ())) if isinstance(one, str)]
    return list(dict.fromkeys([*texts, *fields, *words, *own])) or ["example"]


def _words(messages: Sequence[Message]) -> list[str]:
    """Return quotations of the user's messages and of results, then words that look like names or keys, then others."""
    texts = [str(message.get("content") or "") for message in messages if message.get("role") in ("user", "tool")]
    quoted = [one for text in texts for one in re.findall(r"[\"'`]([^\"'`\n]{1,40})[\"'`]", text)]
    words = [word for text in texts for word in re.findall(r"[\w@.\-]*\w", text) if word.lower() not in _COMMON]
    words = sorted(dict.fromkeys(words), key=lambda word: not re.search(r"[\d@_A-Z-]", word))
    return list(dict.fromkeys([*quoted, *words]))[:_MOST_WORDS]
