"""Which earlier turn a conversation continues, by a comparison that survives what clients do to messages."""

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
    """What a message says, hashable: content None, absent and "" are one, text parts are joined, tool calls are their
    names and JSON-equal arguments. Ids and everything else that clients drop or rewrite do not count."""
    calls = message.get("tool_calls") or ()
    return (message.get("role"), content_text(message.get("content")), tuple(_canonical_call(call) for call in calls))


def canonical_history(messages: Sequence[Message]) -> CanonicalHistory:
    return tuple(canonical_message(message) for message in messages)


class Conversation(Protocol):
    """What was played, as requests are compared to it."""

    @property
    def history(self) -> CanonicalHistory:
        """The request and its answer."""
        ...

    @property
    def tools(self) -> str: ...


class ConversationOfTurn(Conversation, Protocol):
    """What was played with a turn at its end."""

    @property
    def turn(self) -> Turn: ...


Played = TypeVar("Played", bound=Conversation)


def continued(wanted: CanonicalHistory, tools: str, played: Sequence[Played]) -> list[Played]:
    """The longest conversation that a request goes on from: several when equal answers were given to it, none when it
    goes on from nothing.

    Of conversations of one length an equal one wins. Else one counts whose answers are the same but for what clients
    change (`_is_same_answer`), unless different ones would.
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
    """What tells equal answers apart: of each turn, from the last to the first of its line, how many call ids came back as
    they were given, then how many arguments and reasoning texts did."""
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
    """In a field of its own, or before the text."""
    if reasoning := content_text(message.get("reasoning_content")).strip():
        return reasoning
    before = _REASONING.match(content_text(message.get("content")).lstrip())
    return before[1].strip() if before else ""


def _is_same_answer(mine: CanonicalMessage, theirs: CanonicalMessage) -> bool:
    """Whether two messages are equal, or answers with the same calls whose texts are the same apart from line ends, space
    around them and reasoning before them."""
    if mine == theirs:
        return True
    is_answer = mine[0] == theirs[0] == "assistant" and mine[2] == theirs[2]
    return is_answer and _answer_text(mine[1]) == _answer_text(theirs[1])


def _answer_text(text: str) -> str:
    """Without reasoning before it and space around it, with plain line ends."""
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
"""Characters of arguments that are remembered."""


@functools.lru_cache(maxsize=4096)
def _canonical_text(name: str, arguments: str) -> tuple[str, str]:
    """Of a call whose arguments are text: an answer comes back as it was given."""
    _, parsed = call_name_and_arguments({"function": {"name": name, "arguments": arguments}})
    return name, canonical_json(_numbers_alike(parsed))


def _numbers_alike(value: Json) -> Json:
    """JSON has one kind of number. JavaScript writes 1.0 as 1, and knows of integers beyond 2**53 the nearest float."""
    if isinstance(value, dict):
        return {key: _numbers_alike(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers_alike(one) for one in value]
    if isinstance(value, int) and abs(value) > 2**53:
        with contextlib.suppress(OverflowError):  # there is none
            value = float(value)
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
