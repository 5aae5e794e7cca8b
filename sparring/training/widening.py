"""Widen an adapter without changing its function, so that a run can continue with a higher rank (LoRA, arXiv:2106.09685).

In W' = W + (alpha / r) B A, new rows of A may have any values as long as the matching columns of B are zero. The new
rows are initialized as in peft, and start to learn when the columns of B do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sparring.runtime.json_values import parse_json
from sparring.training import checkpoints
from sparring.training.state import AdamWState

SQUARED = "exp_avg_sq"


@dataclass(frozen=True, slots=True)
class Adapter:
    """The size of an adapter."""

    rank: int
    alpha: int

    @property
    def scale(self) -> float:
        """The factor of B A in the merged weights."""
        return self.alpha / self.rank


def widen(checkpoint: Path, into: Path, *, before: Adapter, after: Adapter, seed: int) -> Path:
    """Write the checkpoint into the folder `into` under the same name, with an adapter of a higher rank.

    Return the path of the new checkpoint. Raises DataError if the checkpoint is damaged.
    """
    checkpoints.verify(checkpoint)
    generator = torch.Generator().manual_seed(seed)
    factor = before.scale / after.scale
    more = after.rank - before.rank
    assert more >= 0, "the rank of an adapter can only increase"
    weights = {
        name: _wider(name, tensor, more, factor, generator)
        for name, tensor in checkpoints.read_tensors(checkpoint / "weights.safetensors").items()
    }
    moments = {}
    for name, tensor in checkpoints.read_tensors(checkpoint / "optimizer.safetensors").items():
        # The gradient of B' = factor * B is the gradient of B divided by the factor.
        power = -2 if name.endswith(SQUARED) else -1
        moments[name] = tensor if name.endswith("/step") else _wider(name, tensor, more, factor**power, None)
    state = parse_json((checkpoint / "state.json").read_text("utf-8"))
    step = int(checkpoint.name) if checkpoint.name.isdigit() else checkpoint.name
    return checkpoints.save(into, step, AdamWState(weights=weights, moments=moments), state)


def _wider(name: str, tensor: Tensor, more: int, factor: float, generator: torch.Generator | None) -> Tensor:
    """Return A [r, in] with new rows, or B [out, r] times `factor` with new columns of zeros.

    The new rows are drawn from the generator, or are zero without a generator.
    """
    if ".lora_A." in name:
        rows = torch.zeros(more, tensor.shape[1])
        if generator is not None:
            bound = 1 / math.sqrt(tensor.shape[1])  # kaiming_uniform with a = sqrt(5), as peft initializes A
            rows.uniform_(-bound, bound, generator=generator)
        return torch.cat([tensor, rows.to(tensor.dtype)])
    if ".lora_B." in name:
        return torch.cat([tensor * factor, torch.zeros(tensor.shape[0], more, dtype=tensor.dtype)], dim=1)
    return tensor
