"""Converts earlier answers in a request to messages that sessions recognize."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from sparring.types import Json, Message


class TextPart(Protocol):
    """A text part of a message's content."""

    @property
    def text(self) -> str: ...


def text_of(content: str | Sequence[TextPart] | None) -> str:
    """Return content as one string."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def tool_call(id: str, name: str, arguments: str) -> dict[str, Json]:
    """Return a tool call in the form that sessions use. `arguments` is JSON text."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def joined(messages: Iterable[Message]) -> list[Message]:
    """Return the messages, with the parts of each answer joined. Some APIs send an answer's text and its calls as
    separate items. Two consecutive texts are two answers, because an answer has only one text."""
    result: list[Message] = []
    for message in messages:
        last: Message = result[-1] if result else {"role": None}
        if last["role"] == message["role"] == "assistant" and not (last["content"] and message["content"]):
            calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
            whole = {"role": "assistant", "content": last["content"] or message["content"]}
            result[-1] = {**whole, "tool_calls": calls} if calls else whole
        else:
            result.append(message)
    return result
