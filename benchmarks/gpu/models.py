"""Llama shapes with random weights, created on the device, and a small tokenizer. Rates do not depend on the
weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from recipes.pointer_chase.model import build as build_small
from sparring.models.policy import LoraSettings, Policy
from sparring.models.precision import prepare_cuda

SHAPES: Mapping[str, Mapping[str, Any]] = {
    # Llama 3.2 1B and Llama 3.1 8B.
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    # SmolLM2-135M.
    "SmolLM2": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    # For testing the program itself on a machine without a GPU.
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
VOCABULARY_SIZE = {"SmolLM2": 49152, "tiny": 1000}
MAX_POSITIONS = 2048


def build_model(shape: str, device: str, dtype: torch.dtype) -> LlamaForCausalLM:
    """Create a model of this shape with random weights, directly on the device and in this floating-point format."""
    config = LlamaConfig(
        **SHAPES[shape],
        vocab_size=VOCABULARY_SIZE.get(shape, 128256),
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=shape != "8B",
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)


def build_policy(shape: str, device: str) -> Policy:
    """Create a policy of this shape, with an adapter on every linear layer."""
    prepare_cuda(device)
    return Policy(
        build_model(shape, device, torch.bfloat16 if device == "cuda" else torch.float32),
        None,
        precision="bf16",
        device=device,
        max_positions=MAX_POSITIONS,
        lora=LoraSettings(rank=16, alpha=32, targets=LORA_TARGETS),
    )


def _build_for_a_run(shape: str, seed: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(seed)
    return build_model(shape, device, dtype), build_small()[1]


def build_8b(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the 8B shape for a recipe (`model.name`), with the tokenizer of pointer_chase."""
    return _build_for_a_run("8B", seed)


def build_smollm2(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return SmolLM2's shape for a recipe, with the tokenizer of pointer_chase."""
    return _build_for_a_run("SmolLM2", seed)


def build_tiny(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the tiny shape for a recipe, with the tokenizer of pointer_chase."""
    return _build_for_a_run("tiny", seed)
