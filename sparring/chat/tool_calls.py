"""Tool calls as text, for models whose template does not support them: Hermes tags around JSON, and one signature line
per tool.

The text is compact, since each of its tokens is sampled or computed many times:

    <tool_call>{"name":"look_up","arguments":{"key":"b"}}</tool_call>

The parser accepts any whitespace, so it also reads the format of Qwen and Hermes (Hermes function calling, 2024).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from sparring.chat.messages import call_name_and_arguments, content_text, read_json
from sparring.runtime.json_values import is_too_deep
from sparring.types import Json, Message, ToolSchema

OPEN, CLOSE = "<tool_call>", "</tool_call>"

Problem: TypeAlias = Literal["not_closed", "not_json", "no_name", "arguments_not_object"]
"""The kind of error in a tool call that the policy wrote."""


def tools_text(tools: Sequence[ToolSchema]) -> str:
    """Return the description of tools for the system prompt.

    Call a tool with <tool_call>{"name":...,"arguments":{...}}</tool_call>
    Tools:
    look_up(key: string, depth?: integer): Follow the link of a key.
    """
    lines = [f'Call a tool with {OPEN}{{"name":...,"arguments":{{...}}}}{CLOSE}', "Tools:"]
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters") or {}
        required = schema.get("required", ())
        properties: Mapping[str, Json] = schema.get("properties", {})
        parameters = ", ".join(
            f"{name}{'' if name in required else '?'}: {_type_text(kind)}" for name, kind in properties.items()
        )
        description = " ".join(str(function.get("description", "")).split())
        lines.append(f"{function['name']}({parameters})" + (f": {description}" if description else ""))
        lines.extend(
            f"  {name}: {' '.join(str(kind['description']).split())}"
            for name, kind in properties.items()
            if kind.get("description")
        )
    return "\n".join(lines)


def _type_text(schema: Mapping[str, Json]) -> str:
    if "enum" in schema:
        return "|".join(_compact(choice) for choice in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, str) and kind not in ("object", "array"):
        return kind
    return _compact({key: value for key, value in schema.items() if key not in ("description", "title")})


def render_assistant(message: Message, *, is_spaced: bool = False) -> str:
    """Return an assistant message as the text that the policy would have written: the content, then one tag pair per
    call. With `is_spaced`, the whitespace is that of Qwen and Hermes."""
    content = content_text(message.get("content"))
    values = [
        {"name": name, "arguments": arguments}
        for name, arguments in map(call_name_and_arguments, message.get("tool_calls") or ())
    ]
    calls = [
        f"{OPEN}\n{json.dumps(value, ensure_ascii=False)}\n{CLOSE}" if is_spaced else f"{OPEN}{_compact(value)}{CLOSE}"
        for value in values
    ]
    return "\n".join([content, *calls] if content else calls)


def parse_assistant(text: str) -> Message:
    """Return the assistant message that a string contains. This function never raises.

    Well-formed calls become `tool_calls`. Malformed calls stay in the content and are also listed under
    "malformed_tool_calls" as {"text", "problem"}.
    """
    calls: list[Json] = []
    malformed: list[Json] = []
    kept: list[str] = []
    position = 0
    while (start := text.find(OPEN, position)) >= 0:
        kept.append(text[position:start])
        call, position = _parsed_call(text, start)
        if isinstance(call, str):
            block = text[start:position]
            kept.append(block)
            malformed.append({"text": block.strip(), "problem": call})
        else:
            calls.append({"id": f"call_{len(calls)}", "type": "function", "function": call})
    kept.append(text[position:])
    message: dict[str, Json] = {"role": "assistant", "content": "".join(kept).strip()}
    if calls:
        message["tool_calls"] = calls
    if malformed:
        message["malformed_tool_calls"] = malformed
    return message


def _parsed_call(text: str, start: int) -> tuple[dict[str, str] | Problem, int]:
    """Return the call whose opening tag is at `start`, or its error, and the position at which it ends."""
    body_start = start + len(OPEN)
    while body_start < len(text) and text[body_start].isspace():
        body_start += 1
    try:
        # Decoding before searching for the closing tag allows tags inside argument strings.
        _, value_end = _DECODER.raw_decode(text, body_start)
        value = read_json(text[body_start:value_end])
    except (ValueError, RecursionError):
        return _unparsable(text, body_start)
    call = check_call(value, text[body_start:value_end])
    if call == "not_json":
        return _unparsable(text, body_start)
    rest = text[value_end:].lstrip()
    if not rest.startswith(CLOSE):
        return _unparsable(text, value_end)
    return call, len(text) - len(rest) + len(CLOSE)


def check_call(value: Json, text: str) -> dict[str, str] | Problem:
    """Return the function that a call names, or the call's error. `text` is the JSON of the call."""
    if is_too_deep(value, text):
        return "not_json"
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return "no_name"
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return "arguments_not_object"
    return {"name": value["name"], "arguments": arguments_text(arguments)}


def arguments_text(arguments: Mapping[str, Json]) -> str:
    """Return the arguments of a call as the text that its message contains. Raises ValueError for numbers that are not
    finite."""
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _unparsable(text: str, position: int) -> tuple[Problem, int]:
    """Return the error and the end of a body that is not JSON. The body ends at its closing tag, at the next opening
    tag, or at the end of the text."""
    closed, reopened = text.find(CLOSE, position), text.find(OPEN, position)
    if closed >= 0 and not 0 <= reopened < closed:
        return "not_json", closed + len(CLOSE)
    return "not_closed", reopened if reopened >= 0 else len(text)


_DECODER = json.JSONDecoder()


def _compact(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
