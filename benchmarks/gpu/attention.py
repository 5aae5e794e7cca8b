"""Compares two ways to compute a forest's attention, forward and backward: with one call, and with one attention per
segment."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.rates import timed
from sparring.models.forest_attention import Ancestors, attend_by_branch, attend_with_kernel, has_kernel
from sparring.models.llama import Attend, LlamaShape

GROUPS, MEMBERS = 4, 8
"""The forest: groups of answers that share a prompt."""


def measure_attention(shape: str, device: str, *, prompt: int, answer: int) -> list[dict[str, Any]]:
    """Return the time of one layer's attention in each way, and the difference from fp32, for two inputs: a few long
    segments, and eight times as many short branches."""
    return [
        row
        for parts in (1, 8)
        for row in _compare(shape, device, *_plant(GROUPS * parts, prompt // parts, answer // parts))
    ]


def _compare(shape: str, device: str, sizes: Sequence[int], ancestors: Sequence[Ancestors]) -> list[dict[str, Any]]:
    config = SHAPES[shape]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config["hidden_size"] // heads
    llama = LlamaShape(
        num_layers=1,
        hidden_size=config["hidden_size"],
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_eps=1e-5,
        vocab_size=1,
    )
    generator = torch.Generator(device).manual_seed(0)
    inputs = [
        torch.randn(sum(sizes), count, head_dim, generator=generator, device=device, dtype=torch.bfloat16)
        for count in (heads, kv_heads, kv_heads)
    ]
    weight = torch.randn(sum(sizes), heads * head_dim, generator=generator, device=device)

    def compute(attend: Attend, precision: torch.dtype) -> list[torch.Tensor]:
        q, k, v = (one.to(precision).requires_grad_() for one in inputs)
        out = attend(0, q, k, v)
        return [out.detach(), *torch.autograd.grad((out * weight).sum(), (q, k, v))]

    exact = compute(_build(llama, sizes, ancestors, inputs[0].float(), False), torch.float32)
    rows = []
    for what, is_kernel in (("one call", True), ("each branch", False)):
        attend = _build(llama, sizes, ancestors, inputs[0], is_kernel)
        first = timed(lambda attend=attend: compute(attend, torch.bfloat16), device)
        seconds = median([timed(lambda attend=attend: compute(attend, torch.bfloat16), device) for _ in range(7)])
        found = compute(attend, torch.bfloat16)
        build = timed(lambda is_kernel=is_kernel: _build(llama, sizes, ancestors, inputs[0], is_kernel), device)
        errors = [((one - other).norm() / other.norm()).item() for one, other in zip(found, exact, strict=True)]
        rows.append(
            {
                "shape": shape,
                "what": f"attention of {len(sizes)} branches, {what}",
                "tokens": sum(sizes),
                "milliseconds a layer": 1e3 * seconds,
                "milliseconds a microbatch": 1e3 * build,
                "first call, seconds": first,
                "largest relative error": max(errors),
            }
        )
    return rows


def _build(
    llama: LlamaShape, sizes: Sequence[int], ancestors: Sequence[Ancestors], like: torch.Tensor, is_kernel: bool
) -> Attend:
    if is_kernel and has_kernel(like, llama.head_dim):
        return attend_with_kernel(sizes, ancestors, like.device)
    return attend_by_branch(llama, sizes, ancestors)


def _plant(groups: int, prompt: int, answer: int) -> tuple[list[int], list[Ancestors]]:
    sizes, ancestors = list[int](), list[Ancestors]()
    for _ in range(groups):
        root = len(sizes)
        sizes += [prompt, *[answer] * MEMBERS]
        ancestors += [(), *(((root, prompt),) for _ in range(MEMBERS))]
    return sizes, ancestors
