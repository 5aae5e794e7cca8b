"""A lean forward pass for models with the Llama architecture (Llama, SmolLM2, Mistral, Qwen2, Qwen3): one function for
prefill, decoding and training.

The function computes every token of a flat batch once. The caller passes in `attend`, which determines which tokens
attend to which. The query, key and value weights are fused into one matrix, and so are the gate and up weights, because
for small models the number of operations matters more than their size.

Shapes: N tokens in the flat batch, hidden size H, Q query heads, K key/value heads, head size D, vocabulary size V.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparring.models.operations import Operations
from sparring.models.products import Matrix
from sparring.models.recomputed import Recomputed

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

Read: TypeAlias = Callable[[str, Tensor], Tensor]
"""(name, parameter) -> the tensor to use for it."""

Stack: TypeAlias = Callable[[Sequence[Tensor]], Tensor]
"""(parts) -> the matrix with the rows of all parts."""

Masks: TypeAlias = MutableMapping[tuple[int, int], Tensor]
"""The masks of one pass through the model, which all layers share, by the numbers of new and of all tokens."""

MASK_ELEMENTS = 2**20
"""The largest mask, in elements. Longer segments with ancestors attend in blocks of queries, each with its own mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """The sizes of a model with the Llama architecture."""

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

    linears: dict[str, Matrix]
    qkv_bias: Tensor | None
    input_norm: Tensor
    post_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class LlamaWeights:
    """All weights that the forward pass reads. `rotary` is [positions, D/2, 2] with cosine and sine in fp32.

    The norms have the precision of the computation. The matrices and the embedding may be stored in a different
    precision.
    """

    shape: LlamaShape
    embed: Tensor
    lm_head: Tensor
    final_norm: Tensor
    rotary: Tensor
    layers: Sequence[LayerWeights]
    run_with_layer: Callable[[int, Callable[[Tensor], Tensor], Tensor], Tensor] | None = None
    """(layer, function, x) -> function(x), with the weights of the layer in memory; None if all weights are."""


def is_supported(config: Any) -> bool:
    """Return whether a transformers config describes a model that this forward pass computes exactly."""
    if config.model_type not in SUPPORTED or getattr(config, "hidden_act", None) != "silu":
        return False
    if getattr(config, "mlp_bias", False) or getattr(config, "attention_bias", False):
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
    read: Read,
    stack: Stack | None = None,
) -> LlamaWeights:
    """Return the weights of a transformers causal LM in the form that `forward` reads. `read(name, tensor)` returns the
    tensor to use for a named parameter. `stack` joins the parts of a fused matrix; by default, it copies them."""
    layers = tuple(fuse_layer(model, index, read=read, stack=stack) for index in range(len(model.model.layers)))
    return fuse_with_layers(model, layers, max_positions=max_positions, read=read)


def fuse_layer(model: Any, index: int, *, read: Read, stack: Stack | None = None) -> LayerWeights:
    """Return the weights of one layer."""
    layer, prefix = model.model.layers[index], f"model.layers.{index}"
    attention = layer.self_attn

    def stacked(parts: tuple[str, ...], kind: str) -> Tensor:
        pieces = [read(f"{prefix}.{part}.{kind}", getattr(layer.get_submodule(part), kind)) for part in parts]
        return (stack or torch.cat)(pieces) if len(pieces) > 1 else pieces[0]

    return LayerWeights(
        linears={name: stacked(parts, "weight") for name, parts in PARTS.items()},
        qkv_bias=stacked(PARTS["qkv"], "bias") if attention.q_proj.bias is not None else None,
        input_norm=read(f"{prefix}.input_layernorm.weight", layer.input_layernorm.weight),
        post_norm=read(f"{prefix}.post_attention_layernorm.weight", layer.post_attention_layernorm.weight),
        q_norm=read(f"{prefix}.self_attn.q_norm.weight", attention.q_norm.weight)
        if hasattr(attention, "q_norm")
        else None,
        k_norm=read(f"{prefix}.self_attn.k_norm.weight", attention.k_norm.weight)
        if hasattr(attention, "k_norm")
        else None,
    )


def fuse_with_layers(model: Any, layers: Sequence[LayerWeights], *, max_positions: int, read: Read) -> LlamaWeights:
    """Return all weights, of which those of the layers are given."""
    config, base = model.config, model.model
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
        layers=layers,
    )


def forward(
    weights: LlamaWeights,
    ids_N: Tensor,
    positions_N: Tensor,
    attend: Attend,
    *,
    operations: Operations | None = None,
    checkpointing: bool = False,
    begin: tuple[int, Tensor] | None = None,
    on_layer: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Return the final hidden states [N, H], normalized and ready for `lm_head`. `operations` are torch's by default.

    The backward pass computes norms and activations again, which takes next to no time. With `checkpointing`, it computes
    each layer again from its input, so that only the inputs are kept.
    `begin` is the index of the first layer to compute, and its input [N, H]. `on_layer` is called with the index and the
    input of each layer that is computed.
    """
    shape = weights.shape
    num_tokens, head_dim = ids_N.shape[0], shape.head_dim
    num_q, num_k = shape.num_heads, shape.num_kv_heads
    first, x = begin or (0, F.embedding(ids_N, weights.embed).to(weights.final_norm.dtype))
    cos_sin = weights.rotary[positions_N].to(x.dtype)
    use = operations or Operations()
    product = use.product

    def normalize_hidden(x: Tensor, norm: Tensor) -> Tensor:
        return use.normalize(x, norm, shape.rms_eps)

    def run_layer(index: int, x: Tensor, recomputed: Recomputed) -> Tensor:
        layer = weights.layers[index]
        qkv = product(recomputed.apply(normalize_hidden, x, layer.input_norm), layer.linears["qkv"])
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias
        qkv = qkv.view(num_tokens, num_q + 2 * num_k, head_dim)
        # By splits, whose backward pass is one concatenation. The backward pass of each slice would fill a whole tensor.
        heads, v = qkv.split((num_q + num_k, num_k), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = heads.split((num_q, num_k), dim=1)
            q = F.rms_norm(q, (head_dim,), layer.q_norm, shape.rms_eps)
            k = F.rms_norm(k, (head_dim,), layer.k_norm, shape.rms_eps)
            heads = torch.cat((q, k), dim=1)
        q, k = use.rotate(heads, cos_sin).split((num_q, num_k), dim=1)
        attended = attend(index, q, k, v)
        x = x + product(attended, layer.linears["o"])
        gate_up = product(recomputed.apply(normalize_hidden, x, layer.post_norm), layer.linears["gate_up"])
        return x + product(recomputed.apply(use.activate, gate_up), layer.linears["down"])

    def compute_layer(index: int, x: Tensor) -> Tensor:
        with Recomputed(is_active=not checkpointing) as recomputed:
            if checkpointing and torch.is_grad_enabled():
                return checkpoint(run_layer, index, x, recomputed, use_reentrant=False, preserve_rng_state=False)
            return run_layer(index, x, recomputed)

    for index in range(first, len(weights.layers)):
        if on_layer is not None:
            on_layer(index, x)
        run = partial(compute_layer, index)
        x = run(x) if weights.run_with_layer is None else weights.run_with_layer(index, run, x)
    return normalize_hidden(x, weights.final_norm)


def attend_causally(shape: LlamaShape, q: Tensor, k: Tensor, v: Tensor, masks: Masks) -> Tensor:
    """Return the causal attention of one sequence of S tokens for the queries of its last T tokens: q [T,Q,D], k and v
    [S,K,D] -> [T, Q*D].

    If T = S, no mask is needed. `masks` is empty at the start of a pass through the model, and all layers share it.
    """
    num_new, num_all = q.shape[0], k.shape[0]
    repeat = shape.num_heads // shape.num_kv_heads
    if num_new == num_all:
        return _attend_to_itself(q, k, v, repeat)
    step = max(1, MASK_ELEMENTS // (repeat * num_all))
    if num_new <= step:
        return _attend_with_mask(q, k, v, repeat, masks)
    outputs = []
    for start in range(0, num_new, step):
        stop = min(start + step, num_new)
        end = num_all - num_new + stop
        arguments = (q[start:stop], k[:end], v[:end], repeat)
        if torch.is_grad_enabled():
            outputs.append(checkpoint(_attend_in_block, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            outputs.append(_attend_in_block(*arguments))
    return torch.cat(outputs)


def _attend_to_itself(q: Tensor, k: Tensor, v: Tensor, repeat: int) -> Tensor:
    if repeat > 1 and k.is_cuda and k.dtype == torch.float32:
        # In fp32, no fused CUDA kernel supports heads that share keys and values.
        k, v, repeat = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1), 1
    queries, keys, values = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=repeat > 1)
    return out[0].transpose(0, 1).reshape(len(q), -1)


def _attend_in_block(q: Tensor, k: Tensor, v: Tensor, repeat: int) -> Tensor:
    # The mask is not kept for the backward pass: the masks of all blocks and layers together are as large as a dense
    # mask for each layer.
    return _attend_with_mask(q, k, v, repeat, {})


def _attend_with_mask(q: Tensor, k: Tensor, v: Tensor, repeat: int, masks: Masks) -> Tensor:
    """Return the attention with a mask. The queries that share a key head are stacked as rows of one matrix, so that
    keys and values are never repeated."""
    num_new, num_all = q.shape[0], k.shape[0]
    num_kv_heads, head_dim = k.shape[1:]
    rows = (
        q.view(num_new, num_kv_heads, repeat, head_dim).permute(1, 2, 0, 3).reshape(1, -1, repeat * num_new, head_dim)
    )
    mask = None
    if num_new > 1:
        if (num_new, num_all) not in masks:
            is_seen = torch.ones(num_new, num_all, dtype=torch.bool, device=q.device).tril(num_all - num_new)
            hidden = torch.zeros(num_new, num_all, dtype=q.dtype, device=q.device).masked_fill_(~is_seen, -torch.inf)
            masks[num_new, num_all] = hidden.repeat(repeat, 1)
        mask = masks[num_new, num_all]
    out = F.scaled_dot_product_attention(rows, k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask)
    out = out.view(num_kv_heads, repeat, num_new, head_dim).permute(2, 0, 1, 3)
    return out.reshape(num_new, -1)
