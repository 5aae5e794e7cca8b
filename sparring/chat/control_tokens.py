"""Keeps the text of messages and tools text: the names of control tokens in it never become control tokens.

A tokenizer maps the text `<|im_end|>` to the token that ends a turn, wherever the text comes from. Therefore, each name of
a control token in a message is replaced with a placeholder before the chat template is rendered. In the rendered text, all
remaining names come from the template. The placeholders become the names again, which are then tokenized as ordinary text.
Text without such names, which is nearly all text, is rendered and tokenized directly.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, final

from sparring.chat.bracket_calls import MARK
from sparring.chat.messages import json_text
from sparring.chat.tool_calls import CLOSE, OPEN
from sparring.types import Json

REASONING = ("<think>", "</think>")
"""The tags around reasoning."""
OWN_TAGS = (OPEN, CLOSE, "<tool_response>", "</tool_response>", MARK, *REASONING)
"""The tags of the formats that Sparring writes and reads."""

_PLACEHOLDER = "sparringplaintext"
"""Starts each placeholder. It is hidden in messages like the name of a control token. No part at its start equals a part at
its end, so that text before a placeholder cannot change where the placeholder starts."""
_CLOSED = re.compile(rf"{_PLACEHOLDER}([0-9a-f]*)z")
"""A placeholder, with the hidden text in hexadecimal."""
_ESCAPED = re.compile(r"([\"\\\n\r\t])")
"""Characters of a name that stay outside its placeholder, since a template may write messages and tools as JSON."""
_TAG, _SPECIAL_TAG = re.compile(r"[<\[{(|｜].+[>\]})|｜]"), re.compile(r"<[|｜].+[|｜]>")
_RARE, _RARE_END = "\ue000", "\ue001"
"""Characters without a meaning. Names of tokens consist of them while text is tokenized."""


class TextTokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that convert text."""

    @property
    def all_special_ids(self) -> Sequence[int]: ...

    @property
    def chat_template(self) -> Any: ...

    def get_added_vocab(self) -> Mapping[str, int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


def control_tokens(tokenizer: TextTokenizer) -> dict[str, int]:
    """Return the ids of a tokenizer's control tokens, keyed by their names.

    These are all special tokens. Of the other added tokens, they are the tags that the chat template contains, those that
    look like `<|name|>`, and the tags of Sparring's own formats. All other added tokens are text, such as the words, runs
    of spaces and HTML tags of some tokenizers.
    """
    template = str(tokenizer.chat_template or "")
    details: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    special = {*tokenizer.all_special_ids, *(one for one, token in details.items() if token.special)}
    named = {tokenizer.decode([one], skip_special_tokens=False): one for one in special}
    named |= {
        name: one
        for name, one in tokenizer.get_added_vocab().items()
        if one in special
        or name in OWN_TAGS
        or _SPECIAL_TAG.fullmatch(name)
        or (name in template and _TAG.fullmatch(name))
    }
    return {name: one for name, one in named.items() if name.strip()}


@final
class ControlTokens:
    """Hides the names of one tokenizer's control tokens, and tokenizes text with hidden names."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._keeps_reasoning = "</think>" in str(tokenizer.chat_template or "")
        self._ids = control_tokens(tokenizer)
        in_json = {form[1:-1] for name in self._ids for form in (json_text(name), json.dumps(name))}
        self._any = _either([*_any_of((_PLACEHOLDER, *self._ids)), *_starts_of(self._ids, r"\Z")])
        self._any_in_json = _either([*_any_of((_PLACEHOLDER, *in_json)), *_starts_of(in_json, '"')])
        self._any_in_prompt = _either([_CLOSED.pattern, *_any_of(self._ids)])
        self._renamed = functools.lru_cache(maxsize=4)(self._renamed_uncached)

    def occur_in(self, key: str) -> bool:
        """Return whether the JSON of messages and tools may contain the name of a control token."""
        return self._any_in_json.search(key) is not None

    def hide(self, value: Json) -> Json:
        """Return a value with placeholders for the names in all of its strings and keys, and for starts of names at their
        ends."""
        return _changed(value, lambda text: self._any.sub(_placeholder, text))

    def hide_in_messages(self, messages: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
        """Return messages with placeholders.

        An assistant's content may start with reasoning if the template reads reasoning from there. The tags around it
        are kept.
        """
        return [self._hide_in_message(message, self._hide_after_reasoning) for message in messages]

    def hide_in_answer(self, message: Mapping[str, Json]) -> dict[str, Json]:
        """Return a demonstrated answer with placeholders, except for tags of reasoning and of tool calls in its content,
        which a policy would write as control tokens."""
        kept = {name for name in OWN_TAGS if name not in ("<tool_response>", "</tool_response>")}
        return self._hide_in_message(
            message, lambda text: self._any.sub(lambda m: m[0] if m[0] in kept else _placeholder(m), text)
        )

    def are_hidden_in(self, text: str) -> bool:
        """Return whether a rendered text contains placeholders."""
        return _PLACEHOLDER in text

    def encode(self, text: str) -> list[int]:
        """Return the ids of a rendered text. What was hidden becomes the ids of ordinary text."""
        if not self.are_hidden_in(text):
            return self._tokenizer.encode(text, add_special_tokens=False)
        if not hasattr(self._tokenizer, "backend_tokenizer"):
            return self._encode_in_pieces(text)
        ids, is_text = self._encode_renamed(text, is_broken=False)
        # The vocabulary of a unigram model contains the names of some control tokens.
        return ids if is_text else self._encode_renamed(text, is_broken=True)[0]

    def _hide_in_message(self, message: Mapping[str, Json], hide_content: Callable[[str], str]) -> dict[str, Json]:
        hidden = self.hide(message)
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, str):
            hidden["content"] = hide_content(content)
        return hidden

    def _hide_after_reasoning(self, content: str) -> str:
        start = re.match(r"\s*<think>", content) if self._keeps_reasoning else None
        opened, rest = (start[0], content[start.end() :]) if start else ("", content)
        reasoning, closed, answer = rest.partition("</think>") if self._keeps_reasoning else ("", "", rest)
        return opened + self.hide(reasoning) + closed + self.hide(answer)

    def _encode_renamed(self, text: str, *, is_broken: bool) -> tuple[list[int], bool]:
        """Return the ids from a tokenizer in which the control tokens have other names, and whether hidden names are
        text in them. With `is_broken`, each character of a hidden name is tokenized separately."""
        start = _RARE
        if start in text:
            # No text contains its own digest.
            start += hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        renamed, ids = self._renamed(start)
        between = f"{start}{_RARE_END}" if is_broken else ""

        def rename(found: re.Match[str]) -> str:
            if found[1] is None:
                return f"{start}{self._ids[found[0]]}{_RARE_END}"
            return between.join(bytes.fromhex(found[1]).decode())

        encoded = renamed.encode(self._any_in_prompt.sub(rename, text), add_special_tokens=False).ids
        is_text = set(self._ids.values()).isdisjoint(one for one in encoded if one not in ids)
        found = (ids.get(one, one) for one in encoded)
        return [one for one in found if one is not None], is_text

    def _renamed_uncached(self, start: str) -> tuple[Any, dict[int, int | None]]:
        """Return the tokenizer with other names for the control tokens, and the original ids of the tokens that were
        added to it. The vocabulary is shared. The id of the token that breaks names is None."""
        original = self._tokenizer.backend_tokenizer  # type: ignore[attr-defined]
        renamed = type(original)(original.model)
        if original.normalizer is not None:
            renamed.normalizer = original.normalizer
        if original.pre_tokenizer is not None:
            renamed.pre_tokenizer = original.pre_tokenizer
        named: dict[str, int | None] = {f"{start}{_RARE_END}": None}
        tokens: list[Any] = [f"{start}{_RARE_END}"]
        for one, token in original.get_added_tokens_decoder().items():
            is_control = token.content in self._ids
            name = f"{start}{one}{_RARE_END}" if is_control else token.content
            tokens.append(_with_name(token, name, is_control=is_control))
            named[name] = one
        renamed.add_tokens(tokens)
        return renamed, {renamed.token_to_id(name): one for name, one in named.items()}

    def _encode_in_pieces(self, text: str) -> list[int]:
        """Return the ids of the text between the characters of hidden names, and of each of these characters."""
        pieces = [""]
        for index, part in enumerate(_CLOSED.split(text)):
            if index % 2 == 0:
                pieces.append(part)
            else:
                pieces.extend(bytes.fromhex(part).decode())
        return [one for piece in pieces if piece for one in self._tokenizer.encode(piece, add_special_tokens=False)]


def _placeholder(found: re.Match[str]) -> str:
    parts = _ESCAPED.split(found[0])
    return "".join(
        part if index % 2 or not part else f"{_PLACEHOLDER}{part.encode().hex()}z" for index, part in enumerate(parts)
    )


def _changed(value: Json, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _changed(one, change) for key, one in value.items()}
    return [_changed(one, change) for one in value] if isinstance(value, list | tuple) else value


def _with_name(token: Any, name: str, *, is_control: bool) -> Any:
    return type(token)(
        name,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized and not is_control,
    )


def _any_of(words: Collection[str]) -> list[str]:
    """Return regular expressions that together match the longest of several words. Each is a tree of characters, so the
    time for a search does not grow with the number of words."""

    def tree(words: Collection[str]) -> str:
        branches = _any_of(words)
        if len(branches) < 2 and "" not in words:
            return "".join(branches)
        return f"(?:{'|'.join(branches)})" + ("?" if "" in words else "") if branches else ""

    return [re.escape(first) + tree(rest) for first, rest in _by_first(words)]


def _starts_of(words: Collection[str], end: str) -> list[str]:
    """Return regular expressions for the starts of several words before `end`. A template could complete them, as in
    `<function=NAME>`. Words that start with a letter or a digit are left out, since they are no tags."""

    def tree(words: Collection[str]) -> str:
        branches = [re.escape(first) + tree(rest) for first, rest in _by_first(words)]
        return f"(?:{'|'.join(branches)})?" if branches else ""

    return [re.escape(first) + tree(rest) + end for first, rest in _by_first(words) if not first.isalnum()]


def _by_first(words: Collection[str]) -> list[tuple[str, set[str]]]:
    """Return the first characters of words, each with what may follow it."""
    rests: dict[str, set[str]] = {}
    for word in filter(None, words):
        rests.setdefault(word[0], set()).add(word[1:])
    return sorted(rests.items())


def _either(patterns: Sequence[str]) -> re.Pattern[str]:
    # A search is fast if each alternative starts with a character.
    return re.compile("|".join(patterns))
