"""What of an answer may be shown while it is still being sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import final

from sparring.types import Message

_LONGEST_TAG = 16
_LONGEST_CHARACTER = 16
"""In tokens; what is no character after so many is none."""
_ALWAYS_READ = 256
_PART = 16
"""An answer of more than `_ALWAYS_READ` tokens is read whole again when it grew by one part in so many, so that all readings
together cost a multiple of its length, and not its square."""


class _Growth(Enum):
    """What text that closes no tag does to an answer."""

    CONTENT = auto()
    """It continues the content."""
    HIDDEN = auto()
    """It stands in reasoning or a tool call, or follows a call."""
    UNKNOWN = auto()


@final
class VisibleText:
    """Turns sampled ids into text deltas that add up to the final message's content.

    Held back until it is certain: an unfinished tag or tool call, the beginning of a stop text, half a character, space
    at the end. What reasoning and calls are is up to the session's own reading of all ids; between two readings only the
    new ids are decoded, since every tag ends with ">", and other text just goes on.
    """

    def __init__(
        self,
        parse: Callable[[Sequence[int]], Message],
        decode: Callable[[Sequence[int]], str | None],
        stop_texts: Sequence[str] = (),
    ) -> None:
        """`parse` is the session's own reading of ids, so that stream and final message agree; `decode` the text of some ids,
        None when they are not all text."""
        self._parse = parse
        self._decode = decode
        self._stop_texts = stop_texts
        self._token_ids: list[int] = []
        self._num_read = 0
        """Of the ids, when they were last read whole."""
        self._growth = _Growth.UNKNOWN
        self._shown: list[str] = []
        self._held = ""
        """Content that is not shown yet, where text continues it."""
        self._tail = ""
        """How the text ended, without the space behind it."""
        self._space = ""
        self._begin = self._end = 0
        """Of the ids that were decoded last; what precedes `_end` is whole characters."""
        self._is_garbled = False
        """Whether bytes came that are no text: then an answer is only read whole."""
        self._is_past_stop = False
        """Whether a stop text came: what follows it may look like content, so then, too, an answer is only read whole."""
        self._longest_stop = max(map(len, stop_texts), default=1)
        self._recent = ""
        self.reasoning = ""
        """What precedes the text that is shown."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that became certain with these ids."""
        self._token_ids.extend(token_ids)
        added = self._added()
        if added is None or ">" in added:
            self._growth = _Growth.UNKNOWN
        elif self._growth is _Growth.HIDDEN:
            return ""
        elif self._growth is _Growth.CONTENT:
            self._held += added
            if not any(stop in self._held for stop in self._stop_texts):
                return self._show(_certain_part(self._held, self._stop_texts))
            self._growth = _Growth.UNKNOWN
        num_tokens = len(self._token_ids)
        if num_tokens - self._num_read < (num_tokens - _ALWAYS_READ) // _PART:
            return ""
        return self._read(added)

    def finish(self, message: Message) -> str:
        """What of the final content is not shown yet."""
        self.reasoning = message.get("reasoning_content", "")
        shown = "".join(self._shown)
        return message["content"].removeprefix(shown) if message["content"].startswith(shown) else ""

    def _added(self) -> str | None:
        """The text of the ids since the last whole character. They are decoded behind the ids before, since some tokenizers
        spell a first token differently."""
        if self._is_garbled:
            return None
        before, both = (self._decode(self._token_ids[self._begin : end]) for end in (self._end, None))
        if before is None or both is None or not both.startswith(before):
            self._begin = self._end = len(self._token_ids)
            return None
        if both.endswith("\ufffd"):
            self._is_garbled = len(self._token_ids) - self._end > _LONGEST_CHARACTER
            return None if self._is_garbled else ""
        self._begin, self._end = self._end, len(self._token_ids)
        added = both[len(before) :]
        tail = self._tail + self._space + added
        recent = self._recent + added
        self._is_past_stop = self._is_past_stop or any(stop in recent for stop in self._stop_texts)
        self._recent = recent[-self._longest_stop :]
        self._tail = tail.rstrip()[-_LONGEST_TAG:]
        self._space = tail[len(tail.rstrip()) :]
        return added

    def _read(self, added: str | None) -> str:
        """Read all ids, and learn what the text that comes next will be."""
        message = self._parse(self._token_ids)
        self._num_read = len(self._token_ids)
        self.reasoning = message.get("reasoning_content", "")
        content, shown = message["content"], "".join(self._shown)
        is_whole = self._end == len(self._token_ids)
        malformed = message.get("malformed_tool_calls", ())
        for call in malformed:
            # It may yet become well-formed, and then it is no content.
            content = content[: max(0, content.find(call["text"]))]
        if added is None or self._is_past_stop:
            self._growth = _Growth.UNKNOWN
        elif malformed or message.get("tool_calls") or (self.reasoning and not content):
            self._growth = _Growth.HIDDEN
        elif is_whole and content.startswith(shown) and self._ends_with(content.rstrip()):
            self._growth = _Growth.CONTENT
            content = content.rstrip() + self._space
        if not content.startswith(shown):
            return ""
        self._held = content[len(shown) :]
        return self._show(_certain_part(self._held.rstrip("\ufffd"), self._stop_texts))

    def _ends_with(self, content: str) -> bool:
        """Whether the text ended in content, and not in a later part that is none or behind a stop text."""
        end = content[-_LONGEST_TAG:]
        before = self._tail.removesuffix(end).rstrip()
        is_end = self._tail.endswith(end) and (len(end) == _LONGEST_TAG or before == "" or before.endswith(">"))
        return end != "" and is_end and not self.reasoning.endswith(self._tail.rpartition(">")[2].strip() or ">")

    def _show(self, text: str) -> str:
        """Text that `_held` begins with."""
        self._held = self._held[len(text) :]
        if text:
            self._shown.append(text)
        return text


def _certain_part(text: str, stop_texts: Sequence[str]) -> str:
    tag_at = text.rfind("<", max(0, len(text) - _LONGEST_TAG))
    if tag_at >= 0 and ">" not in text[tag_at:]:
        text = text[:tag_at]
    begun = (length for stop in stop_texts for length in range(1, len(stop)) if text.endswith(stop[:length]))
    return text[: len(text) - max(begun, default=0)].rstrip()
