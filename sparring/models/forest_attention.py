"""Attention in a tree of tokens: the tokens of a branch attend to all tokens before the branch and, causally, to each
other.

On a GPU, one call of FlashAttention-2 (arXiv:2307.08691) computes the whole tree: each branch is a sequence of
queries, and the tokens on its path from the root are the keys of this sequence. Elsewhere, one fused attention operation
per branch covers the keys on its path. Both ways compute the same values.

Shapes: N tokens of the flat batch, P keys (the tokens of all paths), Q query heads, K key/value heads, head dimension D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from sparring.models.llama import Attend, LlamaShape, Masks, attend_causally
from sparring.models.recomputed import Recomputed
from sparring.models.token_tree import Part

Ancestors = tuple[Part, ...]
"""The tokens before a branch, root first."""

LARGEST_HEAD = 256
"""The largest head dimension of FlashAttention-2."""


def build_attention(
    shape: LlamaShape,
    sizes: Sequence[int],
    ancestors: Sequence[Ancestors],
    *,
    like: Tensor,
    checkpointing: bool = False,
) -> Attend:
    """Return the attention function of a tree whose branches have these sizes and ancestors. `like` is a tensor on the
    device and in the precision of the products. `checkpointing` means that the backward pass computes whole layers
    again."""
    if len(sizes) > 1 and has_kernel(like, shape.head_dim):
        return attend_with_kernel(sizes, ancestors, like.device)
    return attend_by_branch(shape, sizes, ancestors, checkpointing=checkpointing)


def has_kernel(like: Tensor, head_dim: int) -> bool:
    """Return whether one call can compute a whole tree: this needs a GPU of compute capability 8.0 or higher, a
    16-bit format, and a head dimension that FlashAttention-2 supports."""
    return (
        like.is_cuda
        and like.dtype in (torch.bfloat16, torch.float16)
        and head_dim % 8 == 0
        and head_dim <= LARGEST_HEAD
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(like.device) >= (8, 0)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """The queries and keys of a tree as sequences of different lengths, one per branch."""

    places_P: Tensor | None
    """The index in the flat batch of each key; None if no branch has ancestors, and the keys are the flat batch."""
    query_ends: Tensor
    """The end of each sequence of queries, after a 0 (int32)."""
    key_ends: Tensor
    longest_query: int
    longest_key: int

    def gather(self, tokens_N_K_D: Tensor) -> Tensor:
        """Return the keys or values of all paths [P, K, D]."""
        return tokens_N_K_D if self.places_P is None else tokens_N_K_D.index_select(0, self.places_P)

    def add_up(self, gradients_P_K_D: Tensor, num_tokens: int) -> Tensor:
        """Return the gradient of each token [N, K, D]: the sum, in fp32, over the paths that contain it."""
        if self.places_P is None:
            return gradients_P_K_D
        sums = gradients_P_K_D.new_zeros((num_tokens, *gradients_P_K_D.shape[1:]), dtype=torch.float32)
        return sums.index_add_(0, self.places_P, gradients_P_K_D.float()).to(gradients_P_K_D.dtype)


def list_sequences(sizes: Sequence[int], ancestors: Sequence[Ancestors], device: torch.device | str) -> Sequences:
    """Return the sequences of a tree whose branches have these sizes and ancestors."""
    begins = [0, *accumulate(sizes)]
    lengths = [size + sum(num for _, num in parts) for size, parts in zip(sizes, ancestors, strict=True)]
    places_P = None
    if any(ancestors):
        order = torch.arange(begins[-1])
        paths = [(*parts, (index, sizes[index])) for index, parts in enumerate(ancestors)]
        places_P = torch.cat([order[begins[one] : begins[one] + num] for path in paths for one, num in path]).to(device)
    return Sequences(
        places_P=places_P,
        query_ends=torch.tensor(begins, dtype=torch.int32, device=device),
        key_ends=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device),
        longest_query=max(sizes),
        longest_key=max(lengths),
    )


def attend_with_kernel(sizes: Sequence[int], ancestors: Sequence[Ancestors], device: torch.device) -> Attend:
    """Return an attention function that uses one call for all branches."""
    sequences = list_sequences(sizes, ancestors, device)

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return SequenceAttention.apply(q, k, v, sequences).reshape(len(q), -1)

    return attend


class SequenceAttention(torch.autograd.Function):
    """Compute causal attention of each sequence; its queries are the last of its keys. q [N, Q, D], k and v [N, K, D] ->
    [N, Q, D].

    The backward pass gathers the keys and values again, so that the copies of shared tokens are not kept.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
        out, *others, _ = torch.ops.aten._flash_attention_forward(
            q, sequences.gather(k), sequences.gather(v), *_arguments(sequences), False
        )
        ctx.save_for_backward(q, k, v, out, *others)
        ctx.sequences = sequences
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logsumexp, *random_state = ctx.saved_tensors
        sequences: Sequences = ctx.sequences
        to_q, to_k, to_v = torch.ops.aten._flash_attention_backward(
            gradients[0].contiguous(),
            q,
            sequences.gather(k),
            sequences.gather(v),
            out,
            logsumexp,
            *_arguments(sequences),
            *random_state,
        )
        return to_q, sequences.add_up(to_k, len(k)), sequences.add_up(to_v, len(v)), None


def _arguments(sequences: Sequences) -> tuple[Tensor, Tensor, int, int, float, bool]:
    no_dropout, is_causal = 0.0, True
    lengths = (sequences.query_ends, sequences.key_ends, sequences.longest_query, sequences.longest_key)
    return *lengths, no_dropout, is_causal


def attend_by_branch(
    shape: LlamaShape, sizes: Sequence[int], ancestors: Sequence[Ancestors], *, checkpointing: bool = False
) -> Attend:
    """Return an attention function that runs one fused operation per branch, over the keys on the branch's path. The
    backward pass joins these keys again, so that the copies of shared tokens are not kept."""
    masks: Masks = {}
    # One split cuts the branches at all places where a path leaves them. Its backward pass is one concatenation, while
    # the backward pass of each slice would fill a whole tensor.
    cuts = [{size} for size in sizes]
    for parts in ancestors:
        for branch, num in parts:
            cuts[branch].add(num)
    ends = [sorted(one) for one in cuts]
    begins = [0, *accumulate(map(len, ends))]
    pieces = [end - begin for one in ends for begin, end in pairwise((0, *one))]

    def list_pieces(branch: int, num: int) -> range:
        return range(begins[branch], begins[branch] + ends[branch].index(num) + 1)

    paths = [
        [piece for part in (*parts, (index, size)) for piece in list_pieces(*part)]
        for index, (parts, size) in enumerate(zip(ancestors, sizes, strict=True))
    ]

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = k.split(pieces), v.split(pieces)
        outputs = []
        for queries, path in zip(q.split(list(sizes)), paths, strict=True):
            with Recomputed(is_active=not checkpointing) as recomputed:
                seen_k, seen_v = (recomputed.apply(_join, *(one[piece] for piece in path)) for one in (keys, values))
                outputs.append(attend_causally(shape, queries, seen_k, seen_v, masks))
        return torch.cat(outputs)

    return attend


def _join(*pieces: Tensor) -> Tensor:
    return torch.cat(pieces)
