"""The vocabulary of a tokenizer in the form that llama.cpp reads: byte-level BPE, as in Llama 3, SmolLM2 and Qwen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_GPT2 = [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]
_QWEN2, _LLAMA3 = (
    [
        {
            "type": "Split",
            "pattern": {
                "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
                + digits
                + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            },
            "behavior": "Isolated",
            "invert": False,
        },
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
    ]
    for digits in (r"\p{N}", r"\p{N}{1,3}")
)
_SPLITS: tuple[tuple[str, bool, Sequence[Mapping[str, Any]]], ...] = (
    ("gpt-2", False, _GPT2),
    ("smollm", False, [{"type": "Digits", "individual_digits": True}, *_GPT2]),
    ("qwen2", False, _QWEN2),
    ("llama-bpe", True, _LLAMA3),
)
"""The names of llama.cpp (`tokenizer.ggml.pre`; src/llama-vocab.cpp, commit of llama-cpp-python 0.3.36) for the rules that
split a text before the merges, whether whole pieces that are tokens are kept without merges, and the same rules in a
tokenizer.json."""

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""The types of tokens (`gguf.TokenType`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of a byte-level BPE tokenizer."""

    split: str
    """The name of the rules that split a text before the merges."""
    tokens: tuple[str, ...]
    """The text of each id. Ids without a token have the text `[PAD<id>]`."""
    types: tuple[int, ...]
    merges: tuple[str, ...]
    adds_bos: bool
    """Whether the tokenizer starts each text with the token BOS."""


def read_vocabulary(tokenizer: Any, *, size: int) -> Vocabulary | str:
    """Return the vocabulary with `size` ids, or the reason why llama.cpp would not split texts in the same way."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return "its tokenizer does not come from the tokenizers library"
    content = json.loads(backend.to_str())
    model = content["model"]
    if model["type"] != "BPE" or not model.get("merges"):
        return f"its tokenizer is {model['type']} without merges, not byte-level BPE"
    split = _find_split(content)
    if split is None:
        return "its tokenizer splits or normalizes texts by rules for which llama.cpp has no name"
    tokens, types = _tokens(model["vocab"], content["added_tokens"], size)
    if len(tokens) > size:
        return f"its tokenizer has the id {len(tokens) - 1}, but the model has only {size} embeddings"
    bos = tokenizer.bos_token_id
    return Vocabulary(
        split=split,
        tokens=tuple(tokens),
        types=tuple(types),
        merges=tuple(one if isinstance(one, str) else " ".join(one) for one in model["merges"]),
        adds_bos=bos is not None and tokenizer.encode("a")[:1] == [bos],
    )


def _find_split(content: Mapping[str, Any]) -> str | None:
    normalizer, found = content["normalizer"], content["pre_tokenizer"] or {}
    # llama.cpp reads text as it is. Text in NFC, as nearly all text is, has the same tokens with and without NFC.
    if normalizer is not None and normalizer["type"] != "NFC":
        return None
    parts = [
        {key: value for key, value in part.items() if key != "trim_offsets"}
        for part in found.get("pretokenizers", [found])
    ]
    keeps_pieces = bool(content["model"].get("ignore_merges"))
    return next((name for name, keeps, rules in _SPLITS if (keeps, rules) == (keeps_pieces, parts)), None)


def _tokens(
    vocabulary: Mapping[str, int], added: Sequence[Mapping[str, Any]], size: int
) -> tuple[list[str], list[int]]:
    """Return the text and the type of each id, and of at least `size` ids."""
    texts = {index: (text, NORMAL) for text, index in vocabulary.items()}
    texts |= {one["id"]: (one["content"], CONTROL if one["special"] else USER_DEFINED) for one in added}
    rows = [texts.get(index, (f"[PAD{index}]", UNUSED)) for index in range(max(size, max(texts) + 1))]
    return [text for text, _ in rows], [kind for _, kind in rows]
