"""Define the sizes of published models, so that planning for them needs neither a folder nor network access."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from sparring.planning.shapes import ModelShape, shape_from_config

_GEMMA_4 = {
    "hidden_size": 5376,
    "num_hidden_layers": 60,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "vocab_size": 262144,
    "sliding_window": 1024,
    "attention_k_eq_v": True,
    "tie_word_embeddings": True,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
}
_GPT_OSS = {
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}
_QWEN_36 = {
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 248320,
    "attn_output_gate": True,
    "linear_num_value_heads": 48,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
}
_QWEN_MOE = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
_QWEN_MOE_LARGE = _QWEN_MOE | {
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
}
_GPT_OSS_LARGE = _GPT_OSS | {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}

_Sizes: TypeAlias = tuple[int, int, int, int, int, int]
"""Hidden size, layers, width of the MLP, heads, key/value heads, size of a head."""

_DENSE: tuple[tuple[str, float, int, bool, _Sizes], ...] = (
    ("Qwen/Qwen3-0.6B", 0.6e9, 151936, True, (1024, 28, 3072, 16, 8, 128)),
    ("Qwen/Qwen3-1.7B", 1.7e9, 151936, True, (2048, 28, 6144, 16, 8, 128)),
    ("Qwen/Qwen3-4B", 4.0e9, 151936, True, (2560, 36, 9728, 32, 8, 128)),
    ("Qwen/Qwen3-8B", 8.2e9, 151936, False, (4096, 36, 12288, 32, 8, 128)),
    ("Qwen/Qwen3-14B", 14.8e9, 151936, False, (5120, 40, 17408, 40, 8, 128)),
    ("Qwen/Qwen3-32B", 32.8e9, 151936, False, (5120, 64, 25600, 64, 8, 128)),
    ("Qwen/Qwen2.5-0.5B-Instruct", 0.49e9, 151936, True, (896, 24, 4864, 14, 2, 64)),
    ("Qwen/Qwen2.5-1.5B-Instruct", 1.54e9, 151936, True, (1536, 28, 8960, 12, 2, 128)),
    ("Qwen/Qwen2.5-3B-Instruct", 3.09e9, 151936, True, (2048, 36, 11008, 16, 2, 128)),
    ("Qwen/Qwen2.5-7B-Instruct", 7.61e9, 152064, False, (3584, 28, 18944, 28, 4, 128)),
    ("Qwen/Qwen2.5-14B-Instruct", 14.7e9, 152064, False, (5120, 48, 13824, 40, 8, 128)),
    ("Qwen/Qwen2.5-32B-Instruct", 32.5e9, 152064, False, (5120, 64, 27648, 40, 8, 128)),
    ("Qwen/Qwen2.5-72B-Instruct", 72.7e9, 152064, False, (8192, 80, 29568, 64, 8, 128)),
    ("meta-llama/Llama-3.2-1B-Instruct", 1.23e9, 128256, True, (2048, 16, 8192, 32, 8, 64)),
    ("meta-llama/Llama-3.2-3B-Instruct", 3.21e9, 128256, True, (3072, 28, 8192, 24, 8, 128)),
    ("meta-llama/Meta-Llama-3-8B-Instruct", 8.03e9, 128256, False, (4096, 32, 14336, 32, 8, 128)),
    ("meta-llama/Meta-Llama-3-70B-Instruct", 70.6e9, 128256, False, (8192, 80, 28672, 64, 8, 128)),
    ("meta-llama/Llama-3.1-8B-Instruct", 8.03e9, 128256, False, (4096, 32, 14336, 32, 8, 128)),
    ("meta-llama/Llama-3.1-70B-Instruct", 70.6e9, 128256, False, (8192, 80, 28672, 64, 8, 128)),
    ("meta-llama/Llama-3.3-70B-Instruct", 70.6e9, 128256, False, (8192, 80, 28672, 64, 8, 128)),
    ("mistralai/Mistral-7B-Instruct-v0.2", 7.24e9, 32000, False, (4096, 32, 14336, 32, 8, 128)),
    ("mistralai/Mistral-7B-Instruct-v0.3", 7.25e9, 32768, False, (4096, 32, 14336, 32, 8, 128)),
    ("mistralai/Mistral-Nemo-Instruct-2407", 12.2e9, 131072, False, (5120, 40, 14336, 32, 8, 128)),
    ("HuggingFaceTB/SmolLM2-135M-Instruct", 134.5e6, 49152, True, (576, 30, 1536, 9, 3, 64)),
    ("HuggingFaceTB/SmolLM2-360M-Instruct", 362e6, 49152, True, (960, 32, 2560, 15, 5, 64)),
    ("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1.71e9, 49152, True, (2048, 24, 8192, 32, 32, 64)),
)
"""Repository, parameters, vocabulary, whether the output matrix is the embedding, and sizes."""

_GEMMA_3: tuple[tuple[str, float, int, int, _Sizes], ...] = (
    ("google/gemma-3-270m-it", 268e6, 262144, 512, (640, 18, 2048, 4, 1, 256)),
    ("google/gemma-3-1b-it", 1.0e9, 262144, 512, (1152, 26, 6912, 4, 1, 256)),
    ("google/gemma-3-4b-it", 3.88e9, 262208, 1024, (2560, 34, 10240, 8, 4, 256)),
    ("google/gemma-3-12b-it", 11.77e9, 262208, 1024, (3840, 48, 15360, 16, 8, 256)),
    ("google/gemma-3-27b-it", 27.02e9, 262208, 1024, (5376, 62, 21504, 32, 16, 128)),
)
"""Repository, parameters without those for images, vocabulary, attention window of five of every six layers, and
sizes."""

_SMOLLM_3 = {
    "model_type": "smollm3",
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "intermediate_size": 11008,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}

_OTHERS: tuple[tuple[str, float, Mapping[str, Any]], ...] = (
    ("HuggingFaceTB/SmolLM3-3B", 3.08e9, _SMOLLM_3),
    ("Qwen/Qwen3-30B-A3B", 30.5e9, _QWEN_MOE),
    ("Qwen/Qwen3-235B-A22B", 235e9, _QWEN_MOE_LARGE),
    ("openai/gpt-oss-20b", 20.9e9, _GPT_OSS),
    ("openai/gpt-oss-120b", 116.8e9, _GPT_OSS_LARGE),
    ("Qwen/Qwen3.6-27B", 27e9, _QWEN_36),
    ("google/gemma-4-31B-it", 30.7e9, _GEMMA_4),
)


def short_name(name: str) -> str:
    """Return the name of a model without its owner, and without words for variants that have the same sizes."""
    stem = name.rpartition("/")[2].lower().removeprefix("meta-")
    return re.sub(r"-(instruct|it|pt|base|thinking|coder|\d{4})(?=-|$)", "", stem)


def _config(sizes: _Sizes, vocabulary: int, *, is_tied: bool) -> dict[str, Any]:
    hidden, layers, intermediate, heads, kv_heads, head_size = sizes
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_size,
        "vocab_size": vocabulary,
        "tie_word_embeddings": is_tied,
    }


def _shapes() -> Iterator[ModelShape]:
    configs: list[tuple[str, float, Mapping[str, Any]]] = [
        (repository, parameters, _config(sizes, vocabulary, is_tied=is_tied))
        for repository, parameters, vocabulary, is_tied, sizes in _DENSE
    ]
    configs += _OTHERS
    for repository, parameters, vocabulary, window, sizes in _GEMMA_3:
        kinds = [("sliding_attention", "full_attention")[layer % 6 == 5] for layer in range(sizes[1])]
        config = _config(sizes, vocabulary, is_tied=True) | {"layer_types": kinds, "sliding_window": window}
        configs.append((repository, parameters, config))
    for repository, parameters, config in configs:
        shape = shape_from_config(short_name(repository), config)
        yield replace(shape, source=f"https://huggingface.co/{repository}", published_parameters=parameters)


PUBLISHED = {shape.name: shape for shape in _shapes()}
"""Shapes by the name that `sparring plan` accepts. The sources are the cards and configs of the models."""
