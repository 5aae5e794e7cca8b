"""A lean forward for Llama-shaped models (Llama, SmolLM2, Mistral, Qwen2, Qwen3): one function for prefill, decode and training.

The function computes every token of a flat batch once. The caller passes in `attend`, which decides which tokens attend to
which. Query, key and value weights are one matrix, and so are gate and up, because for small models the number of operations
matters more than their size.

Shapes: N tokens of the flat batch, H hidden, Q query heads, K key/value heads, D head dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

LINEARS = ("qkv", "o", "gate_up", "down")
"""The fused matrices of a layer, in the order they are applied."""

PARTS: dict[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The modules of a transformers layer that each fused matrix stacks, top to bottom."""

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")

Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N,Q,D], k [N,K,D], v [N,K,D]) -> [N, Q*D]; q and k are already rotated."""

Linear: TypeAlias = Callable[[int, str, Tensor], Tensor]
"""(layer, fused matrix, x [N,in]) -> [N,out]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """The sizes of a Llama-shaped model."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """The weights of one layer. `linears` maps LINEARS to [out, in] matrices; norms are [H] or [D]."""

    linears: dict[str, Tensor]
    qkv_bias: Tensor | None
    input_norm: Tensor
    post_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class LlamaWeights:
    """All weights that the forward reads. `rotary` is [positions, D/2, 2] with cosine and sine in fp32."""

    shape: LlamaShape
    embed: Tensor
    lm_head: Tensor
    final_norm: Tensor
    rotary: Tensor
    layers: tuple[LayerWeights, ...]


def is_supported(config: Any) -> bool:
    """Return whether a transformers config describes a model that this forward computes exactly."""
    if config.model_type not in SUPPORTED or getattr(config, "hidden_act", None) != "silu":
        return False
    if getattr(config, "mlp_bias", False) or (
        config.model_type == "llama" and getattr(config, "attention_bias", False)
    ):
        return False
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return False
    if config.model_type == "mistral" and getattr(config, "sliding_window", None) is not None:
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get("rope_type", "default") in ("default", "llama3", "linear")


def fuse(
    model: Any,
    *,
    max_positions: int,
    read: Callable[[str, Tensor], Tensor],
    reuse: Callable[[tuple[str, ...], Callable[[], Tensor]], Tensor] | None = None,
) -> LlamaWeights:
    """Arrange a transformers causal LM for the forward. `read(name, tensor)` returns the tensor to use for a named parameter;
    `reuse(names, stack)` may return an earlier stacked matrix of these parameters instead of calling `stack`."""
    config, base = model.config, model.model

    def stacked(prefix: str, parts: tuple[str, ...], kind: str) -> Tensor:
        names = tuple(f"{prefix}.{part}.{kind}" for part in parts)
        modules = [base.get_submodule(f"{prefix.removeprefix('model.')}.{part}") for part in parts]

        def stack() -> Tensor:
            pieces = [read(name, getattr(module, kind)) for name, module in zip(names, modules, strict=True)]
            return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

        return stack() if reuse is None else reuse(names, stack)

    layers = []
    for index, layer in enumerate(base.layers):
        prefix, attention = f"model.layers.{index}", layer.self_attn
        layers.append(
            LayerWeights(
                linears={name: stacked(prefix, parts, "weight") for name, parts in PARTS.items()},
                qkv_bias=stacked(prefix, PARTS["qkv"], "bias") if attention.q_proj.bias is not None else None,
                input_norm=read(f"{prefix}.input_layernorm.weight", layer.input_layernorm.weight),
                post_norm=read(f"{prefix}.post_attention_layernorm.weight", layer.post_attention_layernorm.weight),
                q_norm=read(f"{prefix}.self_attn.q_norm.weight", attention.q_norm.weight)
                if hasattr(attention, "q_norm")
                else None,
                k_norm=read(f"{prefix}.self_attn.k_norm.weight", attention.k_norm.weight)
                if hasattr(attention, "k_norm")
                else None,
            )
        )
    embed = read("model.embed_tokens.weight", base.embed_tokens.weight)
    tied = model.lm_head.weight is base.embed_tokens.weight
    positions = torch.arange(max_positions, device=embed.device, dtype=torch.float32)
    angles = positions[:, None] * base.rotary_emb.inv_freq.to(device=embed.device, dtype=torch.float32)
    scaling = float(getattr(base.rotary_emb, "attention_scaling", 1.0))
    return LlamaWeights(
        shape=LlamaShape(
            num_layers=len(layers),
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            rms_eps=config.rms_norm_eps,
            vocab_size=embed.shape[0],
        ),
        embed=embed,
        lm_head=embed if tied else read("lm_head.weight", model.lm_head.weight),
        final_norm=read("model.norm.weight", base.norm.weight),
        rotary=torch.stack((angles.cos() * scaling, angles.sin() * scaling), dim=-1),
        layers=tuple(layers),
    )


def forward(
    weights: LlamaWeights, ids_N: Tensor, positions_N: Tensor, attend: Attend, linear: Linear | None = None
) -> Tensor:
    """Return the final hidden states [N, H], normalised and ready for `lm_head`. `linear` replaces the plain matrix
    products."""
    shape = weights.shape
    num_tokens, head_dim = ids_N.shape[0], shape.head_dim
    num_q, num_k = shape.num_heads, shape.num_kv_heads
    x = F.embedding(ids_N, weights.embed)
    cos_sin = weights.rotary[positions_N].to(x.dtype)
    cos, sin = cos_sin[:, None, :, 0], cos_sin[:, None, :, 1]

    def plain(index: int, name: str, inputs: Tensor) -> Tensor:
        return F.linear(inputs, weights.layers[index].linears[name])

    linear = linear or plain

    for index, layer in enumerate(weights.layers):
        qkv = linear(index, "qkv", F.rms_norm(x, (shape.hidden_size,), layer.input_norm, shape.rms_eps))
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias
        qkv = qkv.view(num_tokens, num_q + 2 * num_k, head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = F.rms_norm(qkv[:, :num_q], (head_dim,), layer.q_norm, shape.rms_eps)
            k = F.rms_norm(qkv[:, num_q : num_q + num_k], (head_dim,), layer.k_norm, shape.rms_eps)
            rotated = rotate(torch.cat((q, k), dim=1), cos, sin)
        else:
            rotated = rotate(qkv[:, : num_q + num_k], cos, sin)
        attended = attend(index, rotated[:, :num_q], rotated[:, num_q:], qkv[:, num_q + num_k :])
        x = x + linear(index, "o", attended)
        gate_up = linear(index, "gate_up", F.rms_norm(x, (shape.hidden_size,), layer.post_norm, shape.rms_eps))
        gate, up = gate_up.chunk(2, dim=-1)
        x = x + linear(index, "down", F.silu(gate) * up)
    return F.rms_norm(x, (shape.hidden_size,), weights.final_norm, shape.rms_eps)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding in the half-split layout: heads [N, heads, D], cos and sin [N, 1, D/2] (arXiv:2104.09864)."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend_causally(shape: LlamaShape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the causal attention of one sequence for the queries of its last T tokens: q [T,Q,D], k and v [S,K,D], S >= T ->
    [T, Q*D].

    The queries that share a key head are stacked as rows of one matrix, so keys and values are never repeated.
    """
    num_new, num_all = q.shape[0], k.shape[0]
    repeat, head_dim = shape.num_heads // shape.num_kv_heads, shape.head_dim
    rows = (
        q.view(num_new, shape.num_kv_heads, repeat, head_dim)
        .permute(1, 2, 0, 3)
        .reshape(1, -1, repeat * num_new, head_dim)
    )
    mask = causal_mask(num_new, num_all, repeat, q.device) if num_new > 1 else None
    out = F.scaled_dot_product_attention(rows, k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask)
    out = out.view(shape.num_kv_heads, repeat, num_new, head_dim).permute(2, 0, 1, 3)
    return out.reshape(num_new, shape.num_heads * head_dim)


@lru_cache(maxsize=128)
def causal_mask(num_new: int, num_all: int, repeat: int, device: torch.device) -> Tensor:
    """Return the mask [repeat*T, S] of the keys that each query attends to. The queries are the last T of S tokens, stacked
    `repeat` times."""
    with torch.inference_mode(False):
        return torch.ones(num_new, num_all, dtype=torch.bool, device=device).tril(num_all - num_new).repeat(repeat, 1)
