"""Which earlier turn a conversation continues, by a comparison that survives what clients do to messages."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sparring.chat.messages import call_name_and_arguments, canonical_json, content_text, json_text
from sparring.types import Json, Message

CanonicalMessage: TypeAlias = tuple[Json, ...]
CanonicalHistory: TypeAlias = tuple[CanonicalMessage, ...]


def canonical_message(message: Message) -> CanonicalMessage:
    """What a message says, hashable: content None, absent and "" are one, text parts are joined, tool calls are their
    names and JSON-equal arguments. Ids and everything else that clients drop or rewrite do not count."""
    calls = message.get("tool_calls") or ()
    return (message.get("role"), content_text(message.get("content")), tuple(_canonical_call(call) for call in calls))


def canonical_history(messages: Sequence[Message]) -> CanonicalHistory:
    return tuple(canonical_message(message) for message in messages)


def _canonical_call(call: Mapping[str, Json]) -> tuple[str, str]:
    function = call.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(name, str) and isinstance(arguments, str) and len(arguments) <= _MAX_REMEMBERED:
        return _canonical_text(name, arguments)
    name, arguments = call_name_and_arguments(call)
    return name, canonical_json(_numbers_alike(arguments))


_MAX_REMEMBERED = 4096
"""Characters of arguments that are remembered."""


@functools.lru_cache(maxsize=4096)
def _canonical_text(name: str, arguments: str) -> tuple[str, str]:
    """Of a call whose arguments are text: an answer comes back as it was given."""
    _, parsed = call_name_and_arguments({"function": {"name": name, "arguments": arguments}})
    return name, canonical_json(_numbers_alike(parsed))


def _numbers_alike(value: Json) -> Json:
    """JSON has one kind of number, and JavaScript writes 1.0 as 1."""
    if isinstance(value, dict):
        return {key: _numbers_alike(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers_alike(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def message_digests(messages: Sequence[Message], known: Sequence[bytes] = ()) -> tuple[bytes, ...]:
    """A hash of each message as it came, with all that precede it; `known` are those of the first ones."""
    digests = list(known)
    for message in messages[len(digests) :]:
        before = digests[-1] if digests else b""
        digests.append(hashlib.blake2b(before + json_text(message).encode(), digest_size=16).digest())
    return tuple(digests)


def request_digest(digests: Sequence[bytes], tools: str) -> str:
    """Names a request in the ledger: a hash of its messages, of which `digests` are given, and its tools."""
    return hashlib.blake2b(b"".join(digests[-1:]) + tools.encode(), digest_size=16).hexdigest()


def num_shared(left: CanonicalHistory, right: CanonicalHistory) -> int:
    """How many messages two histories have in common from the start."""
    for index, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return index
    return min(len(left), len(right))
