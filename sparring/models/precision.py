"""Choose the device and the floating-point format."""

from __future__ import annotations

import os

import torch

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The environment variables with the settings of torch's allocator, the newer name first."""


def resolve_device(device: str) -> str:
    """Return the device; `auto` is CUDA if it is available, otherwise the CPU."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def prepare_cuda(device: str) -> None:
    """Choose settings of torch for batches of many different shapes. Do nothing for a CPU.

    The allocator extends its segments instead of adding new ones, unless the user has set its environment variable.
    Otherwise, free memory could be too fragmented for the next microbatch. Attention never uses cuDNN, which seems to
    create a new plan for each new shape (docs/notebook/speed.md).
    """
    if not device.startswith("cuda"):
        return
    if not any(name in os.environ for name in ALLOCATOR):
        is_new = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)
        os.environ[ALLOCATOR[0] if is_new else ALLOCATOR[1]] = "expandable_segments:True"
    torch.backends.cuda.enable_cudnn_sdp(False)


def resolve_precision(precision: str, device: str) -> str:
    """Return the floating-point format; `auto` is bf16 if the hardware supports bf16 products, otherwise fp32.

    A CPU without AVX512-BF16 or AMX emulates bf16 products. In measurements, this took 6 to 150 times as long as fp32
    (docs/notebook/speed.md).
    """
    if precision != "auto":
        return precision
    if device.startswith("cuda"):
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    is_fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]
    return "bf16" if is_fast else "fp32"


def resolve_base_precision(precision: str, device: str) -> str | None:
    """Return the floating-point format in which frozen weights are stored, or None for the format of the checkpoint."""
    if precision != "auto":
        return precision
    return None if device.startswith("cuda") else "fp32"
