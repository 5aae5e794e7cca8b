"""Tensors that the backward pass computes again instead of keeping them.

A product keeps its input for its backward pass. If the input is a cheap function of tensors that are kept anyway, such as a
norm, an activation or a concatenation, its copy takes memory for nothing. Unlike activation checkpointing, this computes no
product again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias, final

import torch
from torch import Tensor

Function: TypeAlias = Callable[..., Tensor]


@final
class Recomputed:
    """A context in which differentiable operations do not keep the tensors that `apply` returned, or views of them. The
    context keeps these tensors itself until it ends, so it should be short. It does nothing if it is not active, or where
    gradients are off."""

    def __init__(self, *, is_active: bool = True) -> None:
        self._sources: dict[int, tuple[Tensor, Function, tuple[Tensor, ...]]] = {}
        is_active = is_active and torch.is_grad_enabled()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack) if is_active else None

    def __enter__(self) -> Recomputed:
        if self._hooks is not None:
            self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hooks is not None:
            self._hooks.__exit__(kind, error, trace)
        self._sources.clear()

    def apply(self, function: Function, *inputs: Tensor) -> Tensor:
        """Return `function(*inputs)`. Operations that would keep the result keep the inputs instead. The function must
        return a new tensor, and the same values whenever it is called."""
        value = function(*inputs)
        if self._hooks is not None:
            # The tensor itself is kept until the end, so that no other tensor gets its address.
            self._sources[value.untyped_storage().data_ptr()] = (value, function, inputs)
        return value

    def _pack(self, kept: Tensor) -> Tensor | _Recipe:
        source = self._sources.get(kept.untyped_storage().data_ptr())
        if source is None:
            return kept
        _, function, inputs = source
        packed = tuple(self._pack(tensor.detach()) for tensor in inputs)
        return _Recipe(function, packed, kept.size(), kept.stride(), int(kept.storage_offset()))


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How a tensor is computed again, and which view of the result was kept."""

    function: Function
    inputs: tuple[Tensor | _Recipe, ...]
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def _unpack(packed: Tensor | _Recipe) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    with torch.no_grad():
        value = packed.function(*map(_unpack, packed.inputs))
    return value.as_strided(packed.size, packed.stride, packed.offset)
