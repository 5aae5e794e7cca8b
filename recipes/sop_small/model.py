"""A Llama with fewer than a million random parameters, whose vocabulary comes from the conversations of clerks."""

from __future__ import annotations

from environment import clerk_log
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.small import small_model

ISOLATED = r"(?<=\":\")[a-z_]+|[A-Z](?=[0-9])|[0-9]"
"""What becomes tokens of its own, so that it can be copied: words that are values, and letters and digits of
codes. So codes that are new are made of tokens that are not."""


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
