"""Compiled versions of torch's operations, for fp32 on the CPU.

torch runs one pass over memory for each step of an operation, such as the four of an activation's gradient. These run one in
all. Both passes use them: they are differentiable, but not twice. Shapes are those of `sparring.models.operations`. All raise
TypeError for a precision other than fp32, and ValueError for shapes that do not belong together.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparring.models import kernels
from sparring.models.compiled import address_of


def normalize(x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
    """Divide each row of x [N, H] by the root of its mean square, and multiply it with the weights [H]."""
    return CompiledNormalization.apply(x, norm, epsilon) if torch.is_grad_enabled() else _normalize(x, norm, epsilon)


def rotate(heads: Tensor, cos_sin: Tensor) -> Tensor:
    """Apply the rotary embedding to heads [N, heads, D], with cosine and sine [N, D/2, 2]."""
    return CompiledRotation.apply(heads, cos_sin) if torch.is_grad_enabled() else _rotate(heads, cos_sin)


def activate(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up: gate_up [N, 2 I] -> [N, I]."""
    return CompiledGatedActivation.apply(gate_up) if torch.is_grad_enabled() else _activate(gate_up)


class CompiledNormalization(torch.autograd.Function):
    """Compute a norm. With r = 1 / root mean square, the gradient of x is r (g w - x r^2 mean(g w x)), and that of the
    weights is the sum of g x r over the rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, norm)
        ctx.epsilon = epsilon
        return _normalize(x, norm, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, norm = (one.contiguous() for one in ctx.saved_tensors)
        gradient, to_x = gradients[0].contiguous(), torch.empty_like(x)
        addresses = [address_of(one) for one in (x, norm, gradient, to_x)]
        kernels.normalize_rows_back([*x.shape, _read_bits(ctx.epsilon), *addresses], 8 * x.numel())
        if not ctx.needs_input_grad[1]:  # adapters leave norms as they are
            return to_x, None, None
        return to_x, (gradient * F.rms_norm(x, norm.shape, eps=ctx.epsilon)).sum(dim=0), None


class CompiledRotation(torch.autograd.Function):
    """Rotate pairs of numbers. The gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos_sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos_sin)
        return _rotate(heads, cos_sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _rotate(gradients[0], *ctx.saved_tensors, is_back=True), None


class CompiledGatedActivation(torch.autograd.Function):
    """Compute silu(gate) * up. Both gradients are written into one tensor."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _activate(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gate_up, gradient = ctx.saved_tensors[0].contiguous(), gradients[0].contiguous()
        out = torch.empty_like(gate_up)
        addresses = [address_of(one) for one in (gate_up, gradient, out)]
        kernels.activate_rows_back([*gradient.shape, *addresses], 16 * gradient.numel())
        return out


def _normalize(x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
    _require(x.ndim == 2 and norm.shape == x.shape[1:], x, norm)
    x, norm = x.contiguous(), norm.contiguous()
    out = torch.empty_like(x)
    addresses = [address_of(one) for one in (x, norm, out)]
    kernels.normalize_rows([*x.shape, _read_bits(epsilon), *addresses], 3 * out.numel())
    return out


def _rotate(heads: Tensor, cos_sin: Tensor, *, is_back: bool = False) -> Tensor:
    _require(heads.ndim == 3 and cos_sin.shape == (len(heads), heads.shape[2] / 2, 2), heads, cos_sin)
    # The tokens may be apart, as where the heads are followed by values. The heads of a token may not.
    if heads.stride()[1:] != (heads.shape[2], 1):
        heads = heads.contiguous()
    cos_sin, out = cos_sin.contiguous(), heads.new_empty(heads.shape)
    sizes = (*heads.shape[:2], cos_sin.shape[1], heads.stride(0), is_back)
    kernels.rotate_rows([*sizes, address_of(heads), address_of(cos_sin), address_of(out)], 2 * out.numel())
    return out


def _activate(gate_up: Tensor) -> Tensor:
    _require(gate_up.ndim == 2 and gate_up.shape[1] % 2 == 0, gate_up)
    gate_up = gate_up.contiguous()
    out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    kernels.activate_rows([*out.shape, address_of(gate_up), address_of(out)], 10 * out.numel())
    return out


def _require(is_valid: bool, *tensors: Tensor) -> None:
    """Raise ValueError for shapes with which a compiled function would read other memory."""
    if not is_valid:
        raise ValueError(f"these shapes do not belong together: {', '.join(str(tuple(one.shape)) for one in tensors)}")


def _read_bits(number: float) -> int:
    """Return the bits of a number in fp32."""
    return ctypes.c_int32.from_buffer(ctypes.c_float(number)).value
