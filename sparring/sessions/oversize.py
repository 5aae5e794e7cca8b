"""Finds prompts that cannot fit the context before all of their text is tokenized, which takes seconds for megabytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparring.chat.messages import content_text
from sparring.protocols import Chat
from sparring.types import Message

LONG_CHARACTERS = 32_768
"""The number of characters from which a prompt is tokenized in another thread."""
_CHARACTERS_PER_TOKEN = 8
"""More than usual text has. A text that is longer than the context by this measure is tokenized in part first."""
_MOST_CHARACTERS_PER_TOKEN = 16
"""More than any list of tools has: names, descriptions and punctuation of JSON."""
_END_OF_REASONING = "</think>"


def count_characters(messages: Sequence[Message]) -> int:
    """Return the number of characters of text contents. Other contents count as one each."""
    return sum(len(content) if isinstance(content := one.get("content"), str) else 1 for one in messages)


def is_oversize(chat: Chat, messages: Sequence[Message], tools: str, most_tokens: int) -> bool:
    """Return whether the prompt of these messages and tools (as JSON) certainly has more than `most_tokens` tokens.

    Only the beginning of the text is tokenized, as one message. Answers with reasoning are not counted, because templates
    leave reasoning out of later prompts.
    """
    if len(tools) > _MOST_CHARACTERS_PER_TOKEN * most_tokens:
        return True
    most = _CHARACTERS_PER_TOKEN * most_tokens
    pieces, num = list[str](), 0
    for text in _texts(messages):
        pieces.append(text[: most - num])
        num += len(pieces[-1])
        if num >= most:
            break
    else:
        return False
    beginning, empty = (len(chat.render([{"role": "user", "content": text}], ())) for text in (" ".join(pieces), ""))
    return beginning - empty > most_tokens


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        text = content_text(message.get("content"))
        if _END_OF_REASONING not in text:
            yield text
