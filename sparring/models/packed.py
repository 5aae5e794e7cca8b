"""Pack large matrices into the layout of oneDNN's kernels, for products with few rows on the CPU.

A BLAS library rearranges the matrix in every product. For the few rows of a decoding step, this takes as long as the
product itself. With a matrix that was packed once, a product of 8 rows is 1.2 to 3 times as fast, and a product of 64
rows up to 1.6 times as fast (docs/notebook).
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from sparring.models.llama import LlamaWeights
from sparring.models.products import Matrix, multiply

MIN_ELEMENTS = 2**18
"""The smallest matrix to pack. With fewer elements, a product is too short for packing to gain anything."""


@final
class PackedMatrices:
    """Packed copies of matrices. Each copy is kept as long as the original matrix exists."""

    def __init__(self) -> None:
        self._packed: Any = WeakIdKeyDictionary()

    def add(self, weights: LlamaWeights) -> None:
        """Pack the matrices that are large enough and not packed yet. Do nothing if oneDNN is not available."""
        for matrix in (weights.lm_head, *(matrix for layer in weights.layers for matrix in layer.linears.values())):
            if isinstance(matrix, Tensor) and matrix not in self._packed and _can_pack(matrix):
                self._packed[matrix] = torch.ops.mkldnn._reorder_linear_weight(matrix.detach(), 32)

    def product(self, inputs_N_I: Tensor, matrix_O_I: Matrix) -> Tensor:
        """Return the product [N, O], computed with the packed copy if there is one."""
        packed = self._packed.get(matrix_O_I) if isinstance(matrix_O_I, Tensor) else None
        if packed is None:
            return multiply(inputs_N_I, matrix_O_I)
        return torch.ops.mkldnn._linear_pointwise(inputs_N_I, packed, None, "none", [], "")


def _can_pack(matrix: Tensor) -> bool:
    if matrix.device.type != "cpu" or matrix.dtype != torch.float32 or matrix.numel() < MIN_ELEMENTS:
        return False
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
