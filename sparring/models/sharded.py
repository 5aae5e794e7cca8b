"""Weights that several ranks hold together: each has a part of every matrix, and gathers a layer while it computes it (FSDP2,
`torch.distributed.fsdp.fully_shard`).

Every pass through the model, forward and backward, is collective: all ranks must run the same number of passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, final, overload

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from sparring.models.llama import LayerWeights

Result = TypeVar("Result")


@final
class ShardedModel(nn.Module):
    """The modules of a transformers causal LM with the Llama architecture, whose parameters are divided among the ranks."""

    def __init__(self, model: Any, mesh: DeviceMesh, *, whole: Iterable[nn.Parameter]) -> None:
        """Replace the parameters of the model, except those in `whole`, by this rank's parts of them. They are moved to the
        device of the mesh, layer by layer."""
        super().__init__()
        kept = set(whole)
        self._layers = nn.ModuleList(_Holder(layer) for layer in model.model.layers)
        self._outer = nn.ModuleList([model.model.embed_tokens, model.model.norm, model.lm_head])
        # Parts that stay whole after a pass would be out of date after the next step. So all are divided again.
        for module in (*self._layers, self):
            sharded = fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=kept)
            # The gradients of the ranks are added up. By default, their mean is taken.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)

    def forward(self, compute: Callable[[], Result]) -> Result:
        """Return `compute()`, with the embedding, the last norm and the output matrix in memory."""
        return compute()

    def run_with_layer(self, index: int, compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return `compute(x)`, with the parameters of a layer in memory. They are gathered again for the backward pass."""
        return self._layers[index](compute, x)


@final
class LazyLayers(Sequence[LayerWeights]):
    """The weights of layers, which are read from the parameters whenever a layer is computed."""

    def __init__(self, num_layers: int, read: Callable[[int], LayerWeights]) -> None:
        self._num_layers, self._read = num_layers, read

    def __len__(self) -> int:
        return self._num_layers

    @overload
    def __getitem__(self, index: int) -> LayerWeights: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerWeights]: ...

    def __getitem__(self, index: int | slice) -> LayerWeights | Sequence[LayerWeights]:
        if isinstance(index, slice):
            return [self._read(one) for one in range(self._num_layers)[index]]
        return self._read(index)


def gather(tensor: Tensor) -> Tensor:
    """Return the whole tensor. For a sharded tensor, this is collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(whole: Tensor, sharded: Tensor) -> Tensor:
    """Return this rank's part of a tensor that all ranks have, divided as another one. This is not collective."""
    if not isinstance(sharded, DTensor):
        return whole
    moved = whole.to(sharded.device)
    return distribute_tensor(moved, sharded.device_mesh, sharded.placements, src_data_rank=None)


def add_norms(norms: Tensor) -> Tensor:
    """Return the norms of sharded tensors from the norms of this rank's parts. This is collective."""
    squares = norms.square()
    torch.distributed.all_reduce(squares)
    return squares.sqrt()


@final
class _Holder(nn.Module):
    """Holds the parameters of one layer while a function of its input is computed."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return compute(x)
