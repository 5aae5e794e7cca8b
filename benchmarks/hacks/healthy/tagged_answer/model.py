"""A small model with random weights, whose vocabulary comes from the transcripts of this environment."""

from __future__ import annotations

from environment import clerk_log
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.small import small_model


def build(seed: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the model with random weights of this seed, and its tokenizer."""
    return small_model(seed, clerk_log(256))
