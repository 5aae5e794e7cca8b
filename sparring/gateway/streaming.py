"""What of an answer may be shown while it is still being sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from sparring.types import Message

_LONGEST_TAG = 16


@final
class VisibleText:
    """Turns sampled ids into text deltas that add up to the final message's content.

    Held back until it is certain: an unfinished tag or tool call, the beginning of a stop text, half a character, space
    at the end.
    """

    def __init__(self, parse: Callable[[Sequence[int]], Message], stop_texts: Sequence[str] = ()) -> None:
        """`parse` is the session's own reading of ids, so that stream and final message agree."""
        self._parse = parse
        self._stop_texts = stop_texts
        self._token_ids: list[int] = []
        self._shown = ""
        self.reasoning = ""
        """What precedes the text that is shown."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that became certain with these ids."""
        self._token_ids.extend(token_ids)
        message = self._parse(self._token_ids)
        self.reasoning = message.get("reasoning_content", "")
        return self._show(_certain_part(message, self._stop_texts))

    def finish(self, message: Message) -> str:
        """What of the final content is not shown yet."""
        self.reasoning = message.get("reasoning_content", "")
        return self._show(message["content"])

    def _show(self, text: str) -> str:
        if not text.startswith(self._shown):
            return ""
        delta = text[len(self._shown) :]
        self._shown = text
        return delta


def _certain_part(message: Message, stop_texts: Sequence[str]) -> str:
    text: str = message["content"]
    for call in message.get("malformed_tool_calls", ()):
        # It may yet become well-formed, and then it is no content.
        text = text[: max(0, text.find(call["text"]))]
    text = text.rstrip("\ufffd")
    tag_at = text.rfind("<", max(0, len(text) - _LONGEST_TAG))
    if tag_at >= 0 and ">" not in text[tag_at:]:
        text = text[:tag_at]
    begun = (length for stop in stop_texts for length in range(1, len(stop)) if text.endswith(stop[:length]))
    return text[: len(text) - max(begun, default=0)].rstrip()
