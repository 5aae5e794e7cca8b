"""Tool calls of Mistral models: a JSON list after `[TOOL_CALLS]`, in which each call has an id of nine letters or
digits.

    [TOOL_CALLS] [{"name": "look_up", "arguments": {"key": "b"}, "id": "4f1ab2c3d"}]

Version 3 of Mistral's tokenizers uses this format, for example in Mistral-7B-Instruct-v0.3 and Mistral Nemo.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

from sparring.chat.messages import content_text, read_json
from sparring.chat.tool_calls import check_call
from sparring.types import Json, Message

MARK = "[TOOL_CALLS]"
_ID = re.compile(r"[A-Za-z0-9]{9}")


def parse_bracketed(text: str) -> Message:
    """Return the assistant message that a string contains. This function never raises. Malformed calls stay in the
    content, as in `tool_calls.parse_assistant`. The number in a call's id is its position in the list."""
    content, mark, body = text.partition(MARK)
    message: dict[str, Json] = {"role": "assistant", "content": content.strip()}
    if not mark:
        return message
    calls: list[Json] = []
    malformed: list[Json] = []
    values, rest = _values(body)
    for place, (value, source) in enumerate(values):
        call = value if isinstance(value, str) else check_call(value, source)
        if isinstance(call, str):
            malformed.append({"text": source.strip(), "problem": call})
        else:
            calls.append({"id": f"call_{place}", "type": "function", "function": call})
    if calls:
        message["tool_calls"] = calls
    if malformed:
        message["malformed_tool_calls"] = malformed
    parts = (content.strip(), *(one["text"] for one in malformed), rest.strip())
    return {**message, "content": "\n".join(filter(None, parts))}


def sampled_ids(text: str) -> list[str]:
    """Return the ids that the policy wrote in the last list of calls of a text."""
    body = text.rpartition(MARK)[2].lstrip() if MARK in text else ""
    try:
        value, _ = json.JSONDecoder().raw_decode(body)
    except (ValueError, RecursionError):
        return []
    calls = value if isinstance(value, list) else [value]
    return [content_text(one.get("id")) if isinstance(one, dict) else "" for one in calls]


def with_short_ids(messages: Sequence[Mapping[str, Json]], sampled: Sequence[str] = ()) -> list[dict[str, Json]]:
    """Return the messages with call ids of nine letters or digits, since the templates reject all other ids.

    `sampled` contains the ids that the policy wrote. The id of a tool result ends with the number of a call; the result
    gets the sampled id of that call.
    """
    result = []
    for message in messages:
        changed = dict(message)
        if message.get("tool_calls"):
            changed["tool_calls"] = [{**call, "id": _short(call.get("id"), ())} for call in message["tool_calls"]]
        if message.get("role") == "tool":
            changed["tool_call_id"] = _short(message.get("tool_call_id"), sampled)
        result.append(changed)
    return result


def _short(id: Json, sampled: Sequence[str]) -> str:
    text = content_text(id)
    number = re.search(r"\d+$", text)
    place = int(number[0]) if number and len(number[0]) < 6 else len(sampled)
    if place < len(sampled) and _ID.fullmatch(sampled[place]):
        return sampled[place]
    return text if _ID.fullmatch(text) else hashlib.blake2b(text.encode(), digest_size=5).hexdigest()[:9]


def _values(body: str) -> tuple[list[tuple[Json, str]], str]:
    """Return each call with its text, and the text after the list. If the list is not JSON, return one element: the
    kind of problem and the whole text."""
    body = body.lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(body)
        value = read_json(body[:end])
    except (ValueError, RecursionError):
        return [("not_json" if body.rstrip().endswith("]") else "not_closed", MARK + body)], ""
    calls = value if isinstance(value, list) else [value]
    named = [(one if isinstance(one, dict) else None, json.dumps(one, ensure_ascii=False)) for one in calls]
    return named, body[end:]
