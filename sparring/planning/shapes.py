"""Describe the shape of a model: its matrices by layer, from a config.json or from a table of published models.

This module reads no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparring.errors import UsageError

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Layers of one kind. Matrices are (out, in)."""

    count: int
    attention: Mapping[str, tuple[int, int]]
    mlp: Mapping[str, tuple[int, int]]
    """The matrices of the MLP, or of one expert if there are several."""
    num_experts: int = 1
    active_experts: int = 1
    kv_width: int = 0
    """The cached numbers per token, including keys and values; 0 for a recurrent layer."""
    window: int | None = None
    """The maximum number of tokens that the layer attends to; None is no limit."""
    state_width: int = 0
    """The numbers in the recurrent state of one sequence."""
    others: int = 0
    """The parameters outside the matrices: norms, biases, routers and convolutions."""

    @property
    def parameters(self) -> int:
        """The parameters of one layer."""
        return _size(self.attention) + self.num_experts * _size(self.mlp) + self.others

    @property
    def active(self) -> int:
        """The parameters of one layer that a token is multiplied with."""
        return _size(self.attention) + self.active_experts * _size(self.mlp) + self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A causal language model."""

    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerShape, ...]
    is_tied: bool = False
    """Whether the output matrix is the embedding."""
    source: str = ""
    published_parameters: float | None = field(default=None, compare=False)

    @property
    def num_layers(self) -> int:
        return sum(layer.count for layer in self.layers)

    @property
    def linear_parameters(self) -> int:
        """The parameters of all layers, without embedding and output matrix."""
        return sum(layer.count * layer.parameters for layer in self.layers)

    @property
    def parameters(self) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)
        return self.linear_parameters + embeddings + self.hidden_size

    @property
    def active_parameters(self) -> int:
        """The parameters that a token is multiplied with: all active parameters and the output matrix."""
        return sum(layer.count * layer.active for layer in self.layers) + self.vocab_size * self.hidden_size

    def adapter_parameters(self, rank: int, targets: tuple[str, ...], last_layers: int | None = None) -> int:
        """Return the number of parameters of a LoRA adapter on the named matrices. Each expert has its own adapter."""
        left = self.num_layers if last_layers is None else last_layers
        total = 0
        for layer in reversed(self.layers):
            count = min(left, layer.count)
            left -= count
            chosen = [(shape, 1) for name, shape in layer.attention.items() if name in targets]
            chosen += [(shape, layer.num_experts) for name, shape in layer.mlp.items() if name in targets]
            total += count * sum(copies * rank * sum(shape) for shape, copies in chosen)
        return total


def dense_layer(
    hidden: int, intermediate: int, heads: int, kv_heads: int, head_dim: int, *, count: int, **others: Any
) -> LayerShape:
    """Return layers with grouped-query attention and a gated MLP."""
    rows, kv_rows = heads * head_dim, kv_heads * head_dim
    return LayerShape(
        count=count,
        attention={
            "q_proj": (rows, hidden),
            "k_proj": (kv_rows, hidden),
            "v_proj": (kv_rows, hidden),
            "o_proj": (hidden, rows),
        },
        mlp={
            "gate_proj": (intermediate, hidden),
            "up_proj": (intermediate, hidden),
            "down_proj": (hidden, intermediate),
        },
        kv_width=2 * kv_rows,
        **{"others": 2 * hidden, **others},
    )


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Return the shape of a transformers config. Raises UsageError for a config without the sizes of a decoder."""
    text: Mapping[str, Any] = config.get("text_config") or config
    try:
        hidden, heads = text["hidden_size"], text["num_attention_heads"]
        head_dim = text.get("head_dim") or hidden // heads
        experts = text.get("num_local_experts") or text.get("num_experts") or 1
        dense = dense_layer(
            hidden,
            text.get("moe_intermediate_size") or text["intermediate_size"],
            heads,
            text.get("num_key_value_heads") or heads,
            head_dim,
            count=text["num_hidden_layers"],
            num_experts=experts,
            active_experts=text.get("num_experts_per_tok") or 1,
            others=2 * hidden + (experts * hidden if experts > 1 else 0),
        )
        if text.get("attn_output_gate"):  # the projection of the queries also computes a gate of the same size
            gated = {**dense.attention, "q_proj": (2 * heads * head_dim, hidden)}
            dense = _changed(dense, attention=gated)
        layers = _by_kind(dense, text)
        vocabulary = text["vocab_size"]
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"the config of {name} has no {error}, but a plan needs the sizes of a decoder. Name one of "
            f"{', '.join(PUBLISHED)}."
        ) from error
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    return ModelShape(
        name=name,
        hidden_size=hidden,
        vocab_size=vocabulary,
        layers=layers,
        is_tied=bool(tied),
        source=f"config.json of {name}",
    )


def _by_kind(dense: LayerShape, text: Mapping[str, Any]) -> tuple[LayerShape, ...]:
    """Return the layers by kind if the config lists kinds: full attention, a window, or a recurrent state."""
    kinds = list(text.get("layer_types") or ())
    if not kinds:
        return (dense,)
    found = []
    for kind in dict.fromkeys(kinds):
        changes: dict[str, Any] = {"count": kinds.count(kind)}
        if kind == "sliding_attention":
            changes["window"] = text.get("sliding_window")
        elif kind == "linear_attention":
            found.append(_recurrent(dense, text, count=changes["count"]))
            continue
        elif text.get("global_head_dim"):
            found.append(_global(dense, text, count=changes["count"]))
            continue
        found.append(_changed(dense, **changes))
    return tuple(found)


def _changed(layer: LayerShape, **changes: Any) -> LayerShape:
    fields = {name: getattr(layer, name) for name in LayerShape.__dataclass_fields__}
    return LayerShape(**{**fields, **changes})


def _global(dense: LayerShape, text: Mapping[str, Any], *, count: int) -> LayerShape:
    """Return the full-attention layers of Gemma 4, which have their own head sizes."""
    hidden = text["hidden_size"]
    rows = text["num_attention_heads"] * text["global_head_dim"]
    kv_rows = (text.get("num_global_key_value_heads") or text["num_key_value_heads"]) * text["global_head_dim"]
    attention = {"q_proj": (rows, hidden), "k_proj": (kv_rows, hidden), "o_proj": (hidden, rows)}
    if not text.get("attention_k_eq_v"):
        attention["v_proj"] = (kv_rows, hidden)
    return _changed(dense, count=count, attention=attention, kv_width=2 * kv_rows)


def _recurrent(dense: LayerShape, text: Mapping[str, Any], *, count: int) -> LayerShape:
    """Return the Gated DeltaNet layers of Qwen3.5 and Qwen3.6."""
    hidden, width = text["hidden_size"], text["linear_key_head_dim"] * text["linear_num_key_heads"]
    heads, value = text["linear_num_value_heads"], text["linear_value_head_dim"]
    mixed = 2 * width + heads * value
    return _changed(
        dense,
        count=count,
        attention={
            "in_proj_qkv": (mixed, hidden),
            "in_proj_z": (heads * value, hidden),
            "in_proj_ba": (2 * heads, hidden),
            "out_proj": (hidden, heads * value),
        },
        kv_width=0,
        state_width=heads * value * text["linear_key_head_dim"] + mixed * text.get("linear_conv_kernel_dim", 4),
        others=dense.others + mixed * text.get("linear_conv_kernel_dim", 4),
    )


def _qwen3(name: str, published: float, sizes: tuple[int, int, int, int], *, tied: bool) -> ModelShape:
    hidden, count, intermediate, heads = sizes
    layer = dense_layer(hidden, intermediate, heads, 8, 128, count=count)
    return ModelShape(
        name=name,
        hidden_size=hidden,
        vocab_size=151936,
        layers=(layer,),
        is_tied=tied,
        source=f"https://huggingface.co/Qwen/{name.replace('qwen3-', 'Qwen3-').upper().replace('QWEN', 'Qwen')}",
        published_parameters=published,
    )


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


def _published(name: str, config: Mapping[str, Any], parameters: float, source: str) -> ModelShape:
    shape = shape_from_config(name, config)
    return ModelShape(
        name=name,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        layers=shape.layers,
        is_tied=shape.is_tied,
        source=source,
        published_parameters=parameters,
    )


PUBLISHED: dict[str, ModelShape] = {}
"""Shapes by the name that `sparring plan` accepts. The sources are the cards and configs of the models."""

for _shape in (
    _qwen3("qwen3-0.6b", 0.6e9, (1024, 28, 3072, 16), tied=True),
    _qwen3("qwen3-1.7b", 1.7e9, (2048, 28, 6144, 16), tied=True),
    _qwen3("qwen3-4b", 4.0e9, (2560, 36, 9728, 32), tied=True),
    _qwen3("qwen3-8b", 8.2e9, (4096, 36, 12288, 32), tied=False),
    _qwen3("qwen3-14b", 14.8e9, (5120, 40, 17408, 40), tied=False),
    _qwen3("qwen3-32b", 32.8e9, (5120, 64, 25600, 64), tied=False),
    _published("qwen3-30b-a3b", _QWEN_MOE, 30.5e9, "https://huggingface.co/Qwen/Qwen3-30B-A3B"),
    _published("gpt-oss-20b", _GPT_OSS, 20.9e9, "https://huggingface.co/openai/gpt-oss-20b"),
    _published("qwen3.6-27b", _QWEN_36, 27e9, "https://huggingface.co/Qwen/Qwen3.6-27B"),
    _published("gemma-4-31b", _GEMMA_4, 30.7e9, "https://huggingface.co/google/gemma-4-31B-it"),
    _published(
        "smollm2-135m-instruct",
        {
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "intermediate_size": 1536,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
        },
        134.5e6,
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
):
    PUBLISHED[_shape.name] = _shape


def _size(matrices: Mapping[str, tuple[int, int]]) -> int:
    return sum(rows * columns for rows, columns in matrices.values())
