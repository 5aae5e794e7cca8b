"""A tokenizer whose ids are bytes, with a ChatML template. Tests and examples use it, since it needs no download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@final
class ByteTokenizer:
    """Implements `template.Tokenizer`: three special tokens (ids 0 to 2), then byte `b` as id `3 + b`."""

    eos_token_id = 2
    all_special_ids = (0, 1, 2)
    chat_template = "ChatML, written in Python"
    name_or_path = "bytes"
    num_tokens = 3 + 256
    token_bytes = (*(name.encode() for name in _SPECIAL), *(bytes([byte]) for byte in range(256)))
    """The bytes of each id."""

    def __len__(self) -> int:
        return self.num_tokens

    def get_added_vocab(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(_SPECIAL)}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text. The names of special tokens in the text become their ids."""
        ids: list[int] = []
        while text:
            found = [(text.find(name), index) for index, name in enumerate(_SPECIAL) if name in text]
            position, special = min(found, default=(len(text), None))
            ids.extend(3 + byte for byte in text[:position].encode())
            if special is not None:
                ids.append(special)
                position += len(_SPECIAL[special])
            text = text[position:]
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of the ids. Bytes that are not valid UTF-8 become the replacement character."""
        parts = (
            (b"" if skip_special_tokens else _SPECIAL[token_id].encode()) if token_id < 3 else bytes([token_id - 3])
            for token_id in token_ids
        )
        return b"".join(parts).decode(errors="replace")

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
    ) -> str:
        """Return the messages as ChatML text, without tools or a default system prompt."""
        turns = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in conversation)
        return turns + ("<|im_start|>assistant\n" if add_generation_prompt else "")
