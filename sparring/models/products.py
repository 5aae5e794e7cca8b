"""Products with matrices that are stored in a different precision than that of the computation, and with adapted
matrices.

A base model is stored once, and its weights are frozen. If its format differs from that of the products, both passes
convert one block of rows at a time, so that a converted copy of a whole matrix never exists.

Shapes: N tokens, I inputs, O outputs, r rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ELEMENTS = 2**22
"""The largest number of matrix elements that are converted at once: 16 MiB in fp32."""
EXACT_DEVICES = frozenset({"cuda"})
"""The types of devices on which logits of bf16 operands keep the precision of their fp32 sums. On the CPU, they are
rounded to bf16, because a product with an fp32 result takes many times as long there."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdaptedMatrix:
    """A frozen matrix with low-rank adapters that are not merged into it (LoRA, arXiv:2106.09685): W + scale * B A."""

    base_O_I: Tensor
    heights: tuple[int, ...]
    """The numbers of rows of the parts that the matrix stacks."""
    scale: float
    factors: tuple[Tensor | None, ...]
    """A [r, I] and B [height, r] of each part; both are None for a part without an adapter. At least one part has one."""


Matrix: TypeAlias = Tensor | AdaptedMatrix


def join_adapters(matrix: AdaptedMatrix, dtype: torch.dtype) -> AdaptedMatrix:
    """Return the same matrix with one adapter for all its parts, in the given precision: A is stacked, and B is block
    diagonal. A product then takes three operations, however many parts the matrix has."""
    downs = [a for a in matrix.factors[0::2] if a is not None]
    ups = [
        matrix.base_O_I.new_zeros((height, 0), dtype=dtype) if b is None else b.to(dtype)
        for height, b in zip(matrix.heights, matrix.factors[1::2], strict=True)
    ]
    factors = (torch.cat([a.to(dtype) for a in downs]), torch.block_diag(*ups))
    return replace(matrix, heights=(len(matrix.base_O_I),), factors=factors)


def multiply(inputs_N_I: Tensor, matrix_O_I: Matrix) -> Tensor:
    """Return x W^T [N, O] in the precision of `inputs_N_I`. It is differentiable with respect to the inputs and an
    adapter's factors."""
    if isinstance(matrix_O_I, AdaptedMatrix):
        matrix = matrix_O_I
        arguments = (inputs_N_I, matrix.base_O_I, matrix.heights, matrix.scale, *matrix.factors)
        # The bookkeeping of a differentiable function takes longer than the products of a small batch on a GPU.
        return AdaptedProduct.apply(*arguments) if torch.is_grad_enabled() else _multiply_adapted(*arguments)[0]
    if matrix_O_I.dtype == inputs_N_I.dtype:
        return F.linear(inputs_N_I, matrix_O_I)
    return MixedProduct.apply(inputs_N_I, matrix_O_I)


def project(inputs_N_I: Tensor, matrix_O_I: Tensor, out_N_O: Tensor | None = None) -> Tensor:
    """Return x W^T [N, O], computed block by block if the precisions differ, in `out_N_O` if it is given. The result is not
    differentiable."""
    if matrix_O_I.dtype == inputs_N_I.dtype:
        return F.linear(inputs_N_I, matrix_O_I) if out_N_O is None else torch.mm(inputs_N_I, matrix_O_I.T, out=out_N_O)
    outputs_N_O = inputs_N_I.new_empty(len(inputs_N_I), len(matrix_O_I)) if out_N_O is None else out_N_O
    for rows in _blocks(matrix_O_I):
        torch.mm(inputs_N_I, matrix_O_I[rows].to(inputs_N_I.dtype).T, out=outputs_N_O[:, rows])
    return outputs_N_O


def project_back(gradient_N_O: Tensor, matrix_O_I: Tensor) -> Tensor:
    """Return g W [N, I], computed block by block if the precisions differ. The result is not differentiable."""
    if matrix_O_I.dtype == gradient_N_O.dtype:
        return gradient_N_O @ matrix_O_I
    inputs_N_I = gradient_N_O.new_zeros(len(gradient_N_O), matrix_O_I.shape[1])
    for rows in _blocks(matrix_O_I):
        inputs_N_I.addmm_(gradient_N_O[:, rows], matrix_O_I[rows].to(gradient_N_O.dtype))
    return inputs_N_I


def compute_logits(hidden_N_I: Tensor, matrix_O_I: Tensor, buffer_N_O: Tensor | None = None) -> Tensor:
    """Return x W^T [N, O] in fp32. On `EXACT_DEVICES`, it is never rounded to bf16. The result is not differentiable, and
    may be in `buffer_N_O`, whose precision is that of the hidden states."""
    if is_exact(hidden_N_I):
        return multiply_in_fp32(hidden_N_I, matrix_O_I)
    return project(hidden_N_I, matrix_O_I, buffer_N_O).float()


def is_exact(hidden: Tensor) -> bool:
    """Return whether logits of these hidden states are computed from bf16 operands with an fp32 result."""
    return hidden.dtype == torch.bfloat16 and hidden.device.type in EXACT_DEVICES


def multiply_in_fp32(inputs_N_I: Tensor, matrix_O_I: Tensor) -> Tensor:
    """Return x W^T [N, O] in fp32, with sums in fp32 that are never rounded to bf16. The result is not differentiable.

    CUDA can multiply bf16 operands in this way. Elsewhere, the operands are converted, one block of rows at a time.
    """
    if inputs_N_I.is_cuda and inputs_N_I.dtype == matrix_O_I.dtype == torch.bfloat16:
        return torch.mm(inputs_N_I, matrix_O_I.T, out_dtype=torch.float32)
    inputs = inputs_N_I.float()
    outputs_N_O = inputs.new_empty(len(inputs), len(matrix_O_I))
    for rows in _blocks(matrix_O_I):
        torch.mm(inputs, matrix_O_I[rows].float().T, out=outputs_N_O[:, rows])
    return outputs_N_O


class ExactProduct(torch.autograd.Function):
    """Compute x W^T in fp32 for operands in bf16. The gradients are products in bf16."""

    @staticmethod
    def forward(ctx: Any, inputs_N_I: Tensor, matrix_O_I: Tensor) -> Tensor:
        ctx.save_for_backward(inputs_N_I, matrix_O_I)
        return multiply_in_fp32(inputs_N_I, matrix_O_I)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs_N_I, matrix_O_I = ctx.saved_tensors
        gradient_N_O = gradients[0].to(inputs_N_I.dtype)
        to_inputs = project_back(gradient_N_O, matrix_O_I) if ctx.needs_input_grad[0] else None
        return to_inputs, gradient_N_O.T @ inputs_N_I if ctx.needs_input_grad[1] else None


class MixedProduct(torch.autograd.Function):
    """Compute x W^T with a frozen matrix of a different precision. For the backward pass, it keeps a reference to the
    matrix instead of a copy."""

    @staticmethod
    def forward(ctx: Any, inputs_N_I: Tensor, matrix_O_I: Tensor) -> Tensor:
        ctx.save_for_backward(matrix_O_I)
        return project(inputs_N_I, matrix_O_I)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (matrix_O_I,) = ctx.saved_tensors
        return project_back(gradients[0], matrix_O_I), None


class AdaptedProduct(torch.autograd.Function):
    """Compute x W^T + scale * (x A^T) B^T. For the backward pass, it keeps x, a reference to W, and the narrow product
    x A^T.

    dB = scale * dy^T (x A^T), dA = scale * (dy B)^T x, dx = dy W + scale * (dy B) A; the frozen W gets no gradient.
    The parts of a matrix share each product with x.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, base: Tensor, heights: tuple[int, ...], scale: float, *factors: Tensor | None
    ) -> Tensor:
        outputs, narrow = _multiply_adapted(x, base, heights, scale, *factors)
        ctx.save_for_backward(x, base, narrow, *factors)
        ctx.heights, ctx.scale = heights, scale
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = gradients
        x, base, narrow, *factors = ctx.saved_tensors
        grad_narrow = torch.empty_like(narrow)
        factor_gradients: list[Tensor | None] = [None] * len(factors)
        places: list[tuple[int, slice]] = []
        for index, part, b, columns in _list_adapted(grad, ctx.heights, factors):
            torch.mm(part, b.to(x.dtype), out=grad_narrow[:, columns])
            factor_gradients[2 * index + 1] = (part.T @ narrow[:, columns]).float() * ctx.scale
            places.append((index, columns))
        a = _stack_downs(factors, x.dtype)
        grad_a = (grad_narrow.T @ x).float() * ctx.scale
        for index, columns in places:
            factor_gradients[2 * index] = grad_a[columns]  # the gradients share memory, but no element
        grad_x = project_back(grad, base).addmm_(grad_narrow, a, alpha=ctx.scale) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, None, *factor_gradients


def _multiply_adapted(
    x: Tensor, base: Tensor, heights: tuple[int, ...], scale: float, *factors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return x W^T + scale * (x A^T) B^T, and x A^T of all parts."""
    outputs = project(x, base)
    narrow = x @ _stack_downs(factors, x.dtype).T
    for _, part, b, columns in _list_adapted(outputs, heights, factors):
        part.addmm_(narrow[:, columns], b.to(x.dtype).T, alpha=scale)
    return outputs, narrow


def _stack_downs(factors: Sequence[Tensor | None], dtype: torch.dtype) -> Tensor:
    """Return the matrices A of all parts that have an adapter, one above the other."""
    downs = [a.to(dtype) for a in factors[0::2] if a is not None]
    return torch.cat(downs) if len(downs) > 1 else downs[0]


def _list_adapted(
    outputs_N_O: Tensor, heights: tuple[int, ...], factors: Sequence[Tensor | None]
) -> Iterator[tuple[int, Tensor, Tensor, slice]]:
    """Yield each part that has an adapter: its index, its outputs, its B, and its columns of the narrow product."""
    begin = 0
    parts = zip(outputs_N_O.split(heights, dim=-1), factors[0::2], factors[1::2], strict=True)
    for index, (part, a, b) in enumerate(parts):
        if a is not None and b is not None:
            yield index, part, b, slice(begin, begin + len(a))
            begin += len(a)


def _blocks(matrix_O_I: Tensor) -> Iterator[slice]:
    step = max(1, BLOCK_ELEMENTS // matrix_O_I.shape[1])
    for start in range(0, len(matrix_O_I), step):
        yield slice(start, min(start + step, len(matrix_O_I)))
