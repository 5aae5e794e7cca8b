"""Determines which part of an answer may already be shown while the rest is still being sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import final

from sparring.types import Message

_LONGEST_TAG = 16
_LONGEST_CHARACTER = 16
"""The maximum number of tokens in one character. Bytes that are not a complete character after this many tokens are
invalid."""
_ALWAYS_READ = 256
_PART = 16
"""An answer of more than `_ALWAYS_READ` tokens is parsed as a whole again each time it has grown by this fraction (1 /
value). The cost of all parsing is then linear in the length of the answer, not quadratic."""


class _Growth(Enum):
    """The effect of further text on an answer, as long as the text closes no tag."""

    CONTENT = auto()
    """The text continues the content."""
    HIDDEN = auto()
    """The text belongs to reasoning or a tool call, or follows a call."""
    UNKNOWN = auto()


@final
class VisibleText:
    """Converts sampled ids to text deltas that together form the content of the final message.

    Text is held back until it is certain: an unfinished tag or tool call, the start of a stop text, a part of a
    character, or trailing whitespace. The session's parser uses all ids to decide what is reasoning and what is a tool
    call. Between two such parses, only the new ids are decoded, because every tag ends with ">" and any other text just
    continues the current part.
    """

    def __init__(
        self,
        parse: Callable[[Sequence[int]], Message],
        decode: Callable[[Sequence[int]], str | None],
        stop_texts: Sequence[str] = (),
    ) -> None:
        """Create a converter. `parse` is the session's parser, so that the stream and the final message agree. `decode`
        returns the text of some ids, or None if some of them are not text."""
        self._parse = parse
        self._decode = decode
        self._stop_texts = stop_texts
        self._token_ids: list[int] = []
        self._num_read = 0
        """The number of ids when they were last parsed as a whole."""
        self._growth = _Growth.UNKNOWN
        self._shown: list[str] = []
        self._held = ""
        """The content that is not shown yet and that further text continues."""
        self._tail = ""
        """The end of the text, without trailing whitespace."""
        self._space = ""
        self._begin = self._end = 0
        """The range of the ids that were decoded last. The ids before `_end` are whole characters."""
        self._is_garbled = False
        """Whether there were bytes that are not text. If so, the answer is always parsed as a whole."""
        self._is_past_stop = False
        """Whether there was a stop text. If so, the answer is always parsed as a whole, since text after a stop text
        may look like content."""
        self._longest_stop = max(map(len, stop_texts), default=1)
        self._recent = ""
        self.reasoning = ""
        """The reasoning that precedes the shown text."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Add sampled ids, and return the text that has become certain."""
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
        """Return the part of the final content that has not been shown yet."""
        self.reasoning = message.get("reasoning_content", "")
        shown = "".join(self._shown)
        return message["content"].removeprefix(shown) if message["content"].startswith(shown) else ""

    def _added(self) -> str | None:
        """Return the text of the ids after the last complete character. These ids are decoded together with the
        preceding ids, because some tokenizers decode a first token differently."""
        if self._is_garbled:
            return None
        before, both = (self._decode(self._token_ids[self._begin : end]) for end in (self._end, None))
        if before is None or both is None or not both.startswith(before):
            self._begin = self._end = len(self._token_ids)
            self._tail = self._space = ""  # these ids may contain text, so the end is unknown until there is more
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
        """Parse all ids, and determine the effect of the text that follows."""
        message = self._parse(self._token_ids)
        self._num_read = len(self._token_ids)
        self.reasoning = message.get("reasoning_content", "")
        content, shown = message["content"], "".join(self._shown)
        is_whole = self._end == len(self._token_ids)
        malformed = message.get("malformed_tool_calls", ())
        for call in malformed:
            # The call may still become well-formed, and then it is not content.
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
        """Return whether the text ended in content, rather than in a later hidden part or after a stop text."""
        end = content[-_LONGEST_TAG:]
        before = self._tail.removesuffix(end).rstrip()
        is_end = self._tail.endswith(end) and (len(end) == _LONGEST_TAG or before == "" or before.endswith(">"))
        return end != "" and is_end and not self.reasoning.endswith(self._tail.rpartition(">")[2].strip() or ">")

    def _show(self, text: str) -> str:
        """Mark a prefix of `_held` as shown, and return it."""
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
