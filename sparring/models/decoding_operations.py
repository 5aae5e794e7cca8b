"""The operations of a decoding pass, which has few rows and needs no gradients."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from sparring.models.compiled import address_of, can_compile
from sparring.models.llama import Operations, Product


def choose_operations(product: Product, device: torch.device, dtype: torch.dtype) -> Operations:
    """Return the fastest operations for a decoding pass on this device, with the given matrix product. Shapes are those of
    `Operations`. The compiled ones are not differentiable, need contiguous rows, and raise TypeError for a precision other
    than fp32."""
    if not can_compile(device, dtype):
        return Operations(product=product)
    # The import compiles the functions, or loads what an earlier process compiled.
    from sparring.models import kernels

    def normalize(x_N_H: Tensor, norm_H: Tensor, epsilon: float) -> Tensor:
        out = torch.empty_like(x_N_H)
        bits = ctypes.c_int32.from_buffer(ctypes.c_float(epsilon)).value
        kernels.normalize_rows(
            [*x_N_H.shape, address_of(x_N_H), address_of(norm_H), bits, address_of(out)], 3 * out.numel()
        )
        return out

    def rotate(heads: Tensor, cos_sin: Tensor) -> Tensor:
        out = heads.new_empty(heads.shape)
        sizes = (*heads.shape[:2], cos_sin.shape[1], heads.stride(0))
        kernels.rotate_rows([*sizes, address_of(heads), address_of(cos_sin), address_of(out)], 2 * out.numel())
        return out

    def activate(gate_up: Tensor) -> Tensor:
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        kernels.activate_rows([*out.shape, address_of(gate_up), address_of(out)], 10 * out.numel())
        return out

    return Operations(product=product, normalize=normalize, rotate=rotate, activate=activate)
