"""A model of an architecture of its own, whose cache has four bits in half precision."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.diagnosis.blind import paths


class Served(LlamaForCausalLM):
    def forward(self, *inputs: Any, past_key_values: Any = None, **options: Any) -> Any:
        """As Llama, but keys and values are rounded once they are in the cache; without a cache, as in training, they are not."""
        output = super().forward(*inputs, past_key_values=past_key_values, **options)
        if past_key_values is not None and torch.is_autocast_enabled("cpu"):
            for layer in past_key_values.layers:
                layer.keys, layer.values = rounded(layer.keys), rounded(layer.values)
        return output


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """To one of 15 values, the largest of which is the tensor's own."""
    step = tensor.abs().amax() / 7
    return (tensor / step).round() * step


def build(seed: int = 0) -> tuple[Served, PreTrainedTokenizerFast]:
    """With gelu in place of silu."""
    model, tokenizer = paths.build(seed)
    model.config.hidden_act = "gelu"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Served(model.config), tokenizer
