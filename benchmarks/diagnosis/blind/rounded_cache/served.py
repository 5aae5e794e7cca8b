"""A model with a custom architecture, whose cache has four bits in half precision."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.diagnosis.blind import paths


class Served(LlamaForCausalLM):
    def forward(self, *inputs: Any, past_key_values: Any = None, **options: Any) -> Any:
        """Compute what Llama computes, but round keys and values in the cache. Without a cache, as in training, nothing
        is rounded."""
        output = super().forward(*inputs, past_key_values=past_key_values, **options)
        if past_key_values is not None and torch.is_autocast_enabled("cpu"):
            for layer in past_key_values.layers:
                layer.keys, layer.values = rounded(layer.keys), rounded(layer.values)
        return output


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Round to one of 15 values, the largest of which is the tensor's own maximum."""
    step = tensor.abs().amax() / 7
    return (tensor / step).round() * step


def build(seed: int = 0) -> tuple[Served, PreTrainedTokenizerFast]:
    """Build the model with gelu instead of silu."""
    model, tokenizer = paths.build(seed)
    model.config.hidden_act = "gelu"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Served(model.config), tokenizer
