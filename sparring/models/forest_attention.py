"""Attention in a forest of segments: the tokens of a segment attend to all tokens of its ancestors and, causally, to
each other.

On a GPU, one kernel computes the whole forest (flex attention, arXiv:2412.05496). Elsewhere, one fused attention
operation per segment covers the keys on the segment's path. Both ways compute the same values, but the kernel copies no
keys and is launched only once per layer.

Shapes: N tokens of the flat batch, Q query heads, K key/value heads, head dimension D.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparring.models.llama import Attend, LlamaShape, Masks, attend_causally

Path = tuple[int, ...]
"""The indices of the segments on the way from the root to a segment, both included."""

SMALLEST = 1024
"""The smallest number of tokens for which the kernel is used. After torch 2.11 has compiled the kernel for a larger
forest, it cannot compile it for a forest of one block (128 tokens)."""


def build_attention(shape: LlamaShape, sizes: Sequence[int], paths: Sequence[Path], *, like: Tensor) -> Attend:
    """Return the attention function of a forest whose segments have these sizes and paths. `like` is a tensor on the
    device and in the precision of the products."""
    if len(sizes) > 1 and sum(sizes) >= SMALLEST and has_kernel(like):
        return attend_with_kernel(see_ancestors(sizes, paths, like.device), sum(sizes), like.device)
    return attend_by_segment(shape, sizes, paths)


def has_kernel(like: Tensor) -> bool:
    """Return whether the kernel for whole forests can be compiled: this needs CUDA, a 16-bit format, Triton and a C
    compiler."""
    return like.is_cuda and like.dtype in (torch.bfloat16, torch.float16) and _has_compiler()


def see_ancestors(
    sizes: Sequence[int], paths: Sequence[Path], device: torch.device | str
) -> Callable[[Any, Any, Any, Any], Tensor]:
    """Return a function of (batch, head, query, key) that returns whether the query token attends to the key token in
    the flat batch.

    Segments are numbered so that the descendants of segment i have the numbers i + 1 to `leave[i] - 1`. In the flat
    batch, parents come first.
    """
    enter, leave = _preorder(paths)
    repeats = torch.tensor(sizes)
    enter_N = torch.tensor(enter, dtype=torch.int32).repeat_interleave(repeats).to(device)
    leave_N = torch.tensor(leave, dtype=torch.int32).repeat_interleave(repeats).to(device)

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Tensor:
        return (key <= query) & (enter_N[key] <= enter_N[query]) & (enter_N[query] < leave_N[key])

    return sees


def attend_with_kernel(sees: Callable[..., Tensor], num_tokens: int, device: torch.device) -> Attend:
    """Return an attention function that uses one kernel, with the rule that `see_ancestors` returned. The first call in
    a process compiles it."""
    from torch.nn.attention.flex_attention import create_block_mask

    mask = create_block_mask(sees, None, None, num_tokens, num_tokens, device=str(device))

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries, keys, values = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
        out = _kernel()(queries, keys, values, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return out[0].transpose(0, 1).reshape(len(q), -1)

    return attend


def attend_by_segment(shape: LlamaShape, sizes: Sequence[int], paths: Sequence[Path]) -> Attend:
    """Return an attention function that runs one fused operation per segment, over the keys on the segment's path."""
    masks: Masks = {}

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # One split for all segments: its backward pass is one concatenation, where slices would each fill a whole tensor.
        queries, keys, values = q.split(list(sizes)), k.split(list(sizes)), v.split(list(sizes))
        outputs = []
        for index, path in enumerate(paths):
            if len(path) > 1:
                seen_k, seen_v = (
                    torch.cat([keys[other] for other in path]),
                    torch.cat([values[other] for other in path]),
                )
            else:
                seen_k, seen_v = keys[index], values[index]
            outputs.append(attend_causally(shape, queries[index], seen_k, seen_v, masks))
        return torch.cat(outputs)

    return attend


def _preorder(paths: Sequence[Path]) -> tuple[list[int], list[int]]:
    """Return the position of each segment in a depth-first order, and the position after its last descendant."""
    num_below = [1] * len(paths)
    for path in reversed(paths):
        if len(path) > 1:
            num_below[path[-2]] += num_below[path[-1]]
    enter, leave, following = [0] * len(paths), [0] * len(paths), 0
    free = [0] * len(paths)
    for index, path in enumerate(paths):
        if len(path) > 1:
            enter[index] = free[path[-2]]
            free[path[-2]] += num_below[index]
        else:
            enter[index] = following
            following += num_below[index]
        free[index] = enter[index] + 1
        leave[index] = enter[index] + num_below[index]
    return enter, leave


@functools.cache
def _kernel() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


@functools.cache
def _has_compiler() -> bool:
    has_triton = importlib.util.find_spec("triton") is not None
    return has_triton and any(shutil.which(name) for name in ("cc", "gcc", "clang"))
