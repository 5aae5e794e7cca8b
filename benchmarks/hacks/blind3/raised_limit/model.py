"""The small model, whose vocabulary comes from this case's transcripts."""

from __future__ import annotations

from environment import clerk_log
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.small import small_model


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    return small_model(seed, clerk_log(256))
