"""Describe the shape of a model: its matrices by layer, from a config.json. No weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparring.errors import UsageError
from sparring.models.architectures.families import FAMILIES

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
LEAN_TYPES = frozenset(kind for family in FAMILIES if family.forward == "lean" for kind in family.model_types)
"""The model types that Sparring's own forward pass computes."""


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
        """The number of parameters in one layer."""
        return _size(self.attention) + self.num_experts * _size(self.mlp) + self.others

    @property
    def active(self) -> int:
        """The number of parameters in one layer that a token is multiplied with."""
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
    is_lean: bool = False
    """Whether Sparring's own forward pass computes the model, which keeps less memory for the backward pass."""
    source: str = ""
    published_parameters: float | None = field(default=None, compare=False)

    @property
    def num_layers(self) -> int:
        return sum(layer.count for layer in self.layers)

    @property
    def linear_parameters(self) -> int:
        """The number of parameters in all layers, without the embedding and the output matrix."""
        return sum(layer.count * layer.parameters for layer in self.layers)

    @property
    def parameters(self) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)
        return self.linear_parameters + embeddings + self.hidden_size

    @property
    def active_parameters(self) -> int:
        """The number of parameters that a token is multiplied with: all active parameters and the output matrix."""
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
            f"the config of {name} has no {error}, but a plan needs the sizes of a decoder. Specify a folder whose config.json "
            "states them, or a published model in docs/planning.md."
        ) from error
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    is_plain = layers == (dense,) and experts == 1 and not text.get("attn_output_gate")
    return ModelShape(
        name=name,
        hidden_size=hidden,
        vocab_size=vocabulary,
        layers=layers,
        is_tied=bool(tied),
        is_lean=is_plain and text.get("model_type", "llama") in LEAN_TYPES,
        source=f"config.json of {name}",
    )


def _by_kind(dense: LayerShape, text: Mapping[str, Any]) -> tuple[LayerShape, ...]:
    """Return the layers grouped by kind if the config lists kinds: full attention, windowed attention, or a recurrent
    state."""
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


def _size(matrices: Mapping[str, tuple[int, int]]) -> int:
    return sum(rows * columns for rows, columns in matrices.values())
