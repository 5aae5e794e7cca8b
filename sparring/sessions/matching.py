"""Finds the earlier turn that a conversation continues. The comparison ignores the changes that clients usually make to
messages."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from sparring.chat.messages import call_name_and_arguments, canonical_json, content_text, json_text
from sparring.types import Json, Message, Turn

CanonicalMessage: TypeAlias = tuple[Json, ...]
CanonicalHistory: TypeAlias = tuple[CanonicalMessage, ...]


def canonical_message(message: Message) -> CanonicalMessage:
    """Return the content of a message in a hashable form for comparison. Content that is None, missing or "" counts as
    equal. Text parts are joined. Tool calls are compared by their names and by their arguments as JSON values. Ids and
    other fields that clients drop or rewrite are ignored."""
    calls = message.get("tool_calls") or ()
    return (message.get("role"), content_text(message.get("content")), tuple(_canonical_call(call) for call in calls))


def canonical_history(messages: Sequence[Message]) -> CanonicalHistory:
    """Return the canonical form of each message."""
    return tuple(canonical_message(message) for message in messages)


class Conversation(Protocol):
    """An earlier conversation, in the form in which it is compared with requests."""

    @property
    def history(self) -> CanonicalHistory:
        """The messages of the request and its answer."""
        ...

    @property
    def tools(self) -> str:
        """The tools of the request, as canonical JSON."""
        ...


class ConversationOfTurn(Conversation, Protocol):
    """An earlier conversation with the turn that answered it."""

    @property
    def turn(self) -> Turn:
        """The turn whose answer ends the conversation."""
        ...


Played = TypeVar("Played", bound=Conversation)


def continued(wanted: CanonicalHistory, tools: str, played: Sequence[Played]) -> list[Played]:
    """Return the longest earlier conversation that a request continues. The result has several items if the same
    request got several equal answers, and is empty if the request continues no conversation.

    Among conversations of the same length, exactly equal ones are preferred. Otherwise, conversations whose answers
    differ only in what clients change (`_is_same_answer`) also match, if all such conversations are equal to each
    other.
    """
    for length in sorted({len(one.history) for one in played}, reverse=True):
        begin = wanted[:length]
        same = [one for one in played if len(one.history) == length and one.tools == tools and one.history == begin]
        if same:
            return same
        alike = [
            one
            for one in played
            if len(one.history) == length == len(begin)
            and one.tools == tools
            and all(map(_is_same_answer, one.history, begin))
        ]
        if alike and all(one.history == alike[0].history for one in alike):
            return alike
    return []


def num_kept(
    one: ConversationOfTurn, messages: Sequence[Message], played: Sequence[ConversationOfTurn]
) -> tuple[tuple[int, int], ...]:
    """Return a sort key that distinguishes equal answers. The key contains two counts for each turn of the
    conversation, from the last turn to the first: the tool call ids that the client sent back unchanged, and the
    unchanged arguments and reasoning texts."""
    by_id = {other.turn.id: other for other in played}
    kept: list[tuple[int, int]] = []
    line: ConversationOfTurn | None = one
    while line is not None:
        mine, theirs = line.turn.message, messages[len(line.history) - 1]
        calls = list(zip(mine.get("tool_calls") or (), theirs.get("tool_calls") or (), strict=False))
        reasoning = _reasoning(mine)
        kept.append(
            (
                sum(given["id"] == back.get("id") for given, back in calls),
                sum(
                    given["function"]["arguments"] == (back.get("function") or {}).get("arguments")
                    for given, back in calls
                )
                + (reasoning != "" and reasoning == _reasoning(theirs)),
            )
        )
        line = None if line.turn.parent is None else by_id.get(line.turn.parent)
    return tuple(kept)


def _reasoning(message: Message) -> str:
    """Return the reasoning of a message, from its own field or from a <think> block before the text."""
    if reasoning := content_text(message.get("reasoning_content")).strip():
        return reasoning
    before = _REASONING.match(content_text(message.get("content")).lstrip())
    return before[1].strip() if before else ""


def _is_same_answer(mine: CanonicalMessage, theirs: CanonicalMessage) -> bool:
    """Return whether two messages are equal. Answers also count as equal if they have the same calls and their texts
    differ only in line ends, surrounding whitespace and leading reasoning."""
    if mine == theirs:
        return True
    is_answer = mine[0] == theirs[0] == "assistant" and mine[2] == theirs[2]
    return is_answer and _answer_text(mine[1]) == _answer_text(theirs[1])


def _answer_text(text: str) -> str:
    """Return the text without leading reasoning and surrounding whitespace, and with "\n" as line end."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    reasoning = _REASONING.match(text)
    return text[reasoning.end() :].strip() if reasoning else text


_REASONING = re.compile(r"<think(?:\s[^>]*)?>(.*?)</think>", re.DOTALL)


def _canonical_call(call: Mapping[str, Json]) -> tuple[str, str]:
    function = call.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(name, str) and isinstance(arguments, str) and len(arguments) <= _MAX_REMEMBERED:
        return _canonical_text(name, arguments)
    name, arguments = call_name_and_arguments(call)
    return name, canonical_json(_numbers_alike(arguments))


_MAX_REMEMBERED = 4096
"""The maximum length of an argument text, in characters, whose canonical form is cached."""


@functools.lru_cache(maxsize=4096)
def _canonical_text(name: str, arguments: str) -> tuple[str, str]:
    """Return the canonical form of a call with text arguments. The result is cached, since later requests repeat each
    answer."""
    _, parsed = call_name_and_arguments({"function": {"name": name, "arguments": arguments}})
    return name, canonical_json(_numbers_alike(parsed))


def _numbers_alike(value: Json) -> Json:
    """Return the value with its numbers converted as JavaScript does it: 1.0 becomes 1, and an integer beyond 2**53
    becomes the nearest float."""
    if isinstance(value, dict):
        return {key: _numbers_alike(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers_alike(one) for one in value]
    if isinstance(value, int) and abs(value) > 2**53:
        with contextlib.suppress(OverflowError):  # too large for a float
            value = float(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def message_digests(messages: Sequence[Message], known: Sequence[bytes] = ()) -> tuple[bytes, ...]:
    """Return, for each unchanged message, a hash of that message and all messages before it. `known` contains the
    hashes of the first messages."""
    digests = list(known)
    for message in messages[len(digests) :]:
        before = digests[-1] if digests else b""
        digests.append(hashlib.blake2b(before + json_text(message).encode(), digest_size=16).digest())
    return tuple(digests)


def request_digest(digests: Sequence[bytes], tools: str) -> str:
    """Return the hash that identifies a request in the ledger, computed from the `digests` of its messages and from its
    tools."""
    return hashlib.blake2b(b"".join(digests[-1:]) + tools.encode(), digest_size=16).hexdigest()


def num_shared(left: CanonicalHistory, right: CanonicalHistory) -> int:
    """Return the number of messages in the common prefix of two histories."""
    for index, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return index
    return min(len(left), len(right))
