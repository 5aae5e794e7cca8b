"""The operations of a layer that have several implementations: matrix products, norms, rotary embedding and activation.

Those of this module are torch's, on any device and in any precision. `choose_operations` returns faster ones where there are
any.

Shapes: N tokens, hidden size H, head dimension D, inner dimension I.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from sparring.models.compiled import can_compile
from sparring.models.products import Matrix, multiply

Product: TypeAlias = Callable[[Tensor, Matrix], Tensor]
"""(x [N,in], matrix [out,in]) -> [N,out]."""


def normalize(x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
    """Divide each row of x [N, H] by the root of its mean square, and multiply it with the weights (arXiv:1910.07467)."""
    return F.rms_norm(x, norm.shape, norm, epsilon)


def rotate(heads: Tensor, cos_sin: Tensor) -> Tensor:
    """Apply the rotary embedding in the half-split layout: heads [N, heads, D], cosine and sine [N, D/2, 2]
    (arXiv:2104.09864)."""
    cos, sin = cos_sin[:, None, :, 0], cos_sin[:, None, :, 1]
    return Rotation.apply(heads, cos, sin) if torch.is_grad_enabled() else _rotate(heads, cos, sin)


def activate(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up: gate_up [N, 2 I] -> [N, I]."""
    if torch.is_grad_enabled():
        return GatedActivation.apply(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The operations of a layer. They are differentiable, except a product that is made for decoding."""

    product: Product = multiply
    normalize: Callable[[Tensor, Tensor, float], Tensor] = normalize
    """(x [N, H], weights [H], epsilon) -> [N, H]."""
    rotate: Callable[[Tensor, Tensor], Tensor] = rotate
    """(heads [N, heads, D], cosine and sine [N, D/2, 2]) -> [N, heads, D]."""
    activate: Callable[[Tensor], Tensor] = activate
    """(gate and up [N, 2 I]) -> [N, I]."""


def choose_operations(device: torch.device, dtype: torch.dtype) -> Operations:
    """Return the fastest operations for a precision on this device."""
    if not can_compile(device, dtype):
        return Operations()
    # The import compiles the functions, or loads what an earlier process compiled.
    from sparring.models import compiled_operations

    return Operations(
        normalize=compiled_operations.normalize,
        rotate=compiled_operations.rotate,
        activate=compiled_operations.activate,
    )


class Rotation(torch.autograd.Function):
    """Rotate pairs of numbers. The gradient is rotated back, with half as many operations as one by one."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(heads, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotate(gradients[0], cos, -sin), None, None


class GatedActivation(torch.autograd.Function):
    """Compute silu(gate) * up. Both gradients are written into one tensor."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        to_both = torch.empty_like(gate_up)
        to_gate, to_up = to_both.chunk(2, dim=-1)
        to_gate.copy_(torch.ops.aten.silu_backward(gradients[0] * up, gate))
        torch.mul(gradients[0], F.silu(gate), out=to_up)
        return to_both


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    rotated = heads.new_empty(heads.shape)
    to_first, to_second = rotated.chunk(2, dim=-1)
    torch.mul(first, cos, out=to_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=to_second).addcmul_(first, sin)
    return rotated
