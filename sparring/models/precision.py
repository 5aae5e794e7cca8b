"""Which floating-point format a device computes fast."""

from __future__ import annotations

import torch


def resolve_device(device: str) -> str:
    """`auto` is CUDA when there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def resolve_precision(precision: str, device: str) -> str:
    """`auto` is bf16 where the hardware multiplies it natively.

    A CPU without AVX512-BF16 or AMX emulates bf16 products: measured 6 to 150 times slower than fp32 (LOG.md).
    """
    if precision != "auto":
        return precision
    if device.startswith("cuda"):
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    is_fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]
    return "bf16" if is_fast else "fp32"
