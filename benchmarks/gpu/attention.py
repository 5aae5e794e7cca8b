"""Compares the two ways of a forest's attention, forward and backward: one kernel, and one attention per segment."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.rates import timed
from sparring.models import forest_attention
from sparring.models.llama import LlamaShape

GROUPS, MEMBERS = 4, 8
"""The forest: groups of answers that share a prompt."""


def measure_attention(shape: str, device: str, *, prompt: int, answer: int) -> list[dict[str, Any]]:
    """Return the seconds of one layer's attention in each way, and their difference from fp32."""
    sizes, paths = _plant(prompt, answer)
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

    def compute(precision: torch.dtype) -> list[torch.Tensor]:
        q, k, v = (one.to(precision).requires_grad_() for one in inputs)
        out = forest_attention.build_attention(llama, sizes, paths, like=q)(0, q, k, v)
        return [out.detach(), *torch.autograd.grad((out * weight).sum(), (q, k, v))]

    exact = compute(torch.float32)  # the kernel is for 16 bits only
    rows = []
    chosen = forest_attention.has_kernel
    for what, has_kernel in (("one kernel", chosen), ("each segment", lambda _: False)):
        forest_attention.has_kernel = has_kernel
        try:
            first = timed(lambda: compute(torch.bfloat16), device)
            seconds = median([timed(lambda: compute(torch.bfloat16), device) for _ in range(5)])
            found = compute(torch.bfloat16)
        finally:
            forest_attention.has_kernel = chosen
        errors = [((one - other).norm() / other.norm()).item() for one, other in zip(found, exact, strict=True)]
        rows.append(
            {
                "shape": shape,
                "what": f"attention of a forest, {what}",
                "tokens": sum(sizes),
                "segments": len(sizes),
                "milliseconds": 1e3 * seconds,
                "first call, seconds": first,
                "largest relative error": max(errors),
            }
        )
    return rows


def _plant(prompt: int, answer: int) -> tuple[list[int], list[tuple[int, ...]]]:
    sizes, paths = list[int](), list[tuple[int, ...]]()
    for _ in range(GROUPS):
        root = len(sizes)
        sizes += [prompt, *[answer] * MEMBERS]
        paths += [(root,), *((root, root + 1 + member) for member in range(MEMBERS))]
    return sizes, paths
