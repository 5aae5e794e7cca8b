"""A Llama with fewer than a million random parameters, and a small subword tokenizer trained on transcripts."""

from __future__ import annotations

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.small import small_model

ISOLATED = r"(?<![a-z_])[a-z](?![a-z_])"
"""A key, which is a single letter, is never merged with its neighbors."""


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the model (fp32, with random weights from this seed) and the tokenizer (the same for every seed).

    A tool call becomes a dozen tokens, as with a real vocabulary, and a key (a single letter) becomes one token.
    """
    return small_model(seed, _texts(), max_token_length=8, isolated=ISOLATED)


def build_wide(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return a model with four heads of 64, the smallest that vLLM serves, and the same tokenizer."""
    return small_model(seed, _texts(), max_token_length=8, isolated=ISOLATED, width=256)


def _texts() -> list[str]:
    """Return the texts between the special tokens of a transcript."""
    texts = ["user\n", "tool\n", "assistant\n", "system\n", "\n", "error: "]
    for key in "abcdefghijklmnop":
        call = f'<tool_call>{{"name":"get","arguments":{{"key":"{key}"}}}}</tool_call>'
        texts += [f"assistant\n{call}", call, f"tool\n{key}", key, f"assistant\nans {key}", f"ans {key}"]
        texts += [f"user\nfind {key} {hops}?" for hops in (1, 2, 3)]
    return texts
