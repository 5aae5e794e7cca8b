"""A Llama with fewer than a million random parameters, whose vocabulary comes from the conversations of clerks."""

from __future__ import annotations

from environment import clerk_log
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.small import small_model

ISOLATED = r"(?<=\":\")[a-z_]+|[A-Z](?=[0-9])|[0-9]"
"""Matches the text that becomes separate tokens, so that the model can copy it: words that are values, and the letters
and digits of codes. A new code therefore consists of tokens that are not new."""


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the model (fp32, with random weights from this seed) and the tokenizer (the same for every seed)."""
    return small_model(
        seed,
        clerk_log(600),
        vocabulary_size=1024,
        max_token_length=64,
        max_positions=1024,
        isolated=ISOLATED,
    )
