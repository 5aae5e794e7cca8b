"""The model: small, from scratch, with a vocabulary from its own transcripts."""

from __future__ import annotations

from environment import clerk_log
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.small import small_model


def build(seed: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Model of this seed, and tokenizer."""
    return small_model(seed, clerk_log(256))
