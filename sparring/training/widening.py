"""A larger adapter that computes what a smaller one did: the way a run may go on with a higher rank (LoRA, arXiv:2106.09685).

With W' = W + (alpha / r) B A, further rows of A may be anything while the columns of B that meet them are zero. The new rows are
drawn as peft draws them, and learn as soon as B's columns do.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sparring.training import checkpoints
from sparring.training.state import AdamWState

SQUARED = "exp_avg_sq"


@dataclass(frozen=True, slots=True)
class Adapter:
    """Its size."""

    rank: int
    alpha: int

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def widen(checkpoint: Path, into: Path, *, before: Adapter, after: Adapter, seed: int) -> Path:
    """Write the checkpoint with an adapter of a higher rank into the folder `into`, under its own name, and return where it is.

    Raises DataError for a damaged checkpoint.
    """
    checkpoints.verify(checkpoint)
    generator = torch.Generator().manual_seed(seed)
    factor = before.scale / after.scale
    more = after.rank - before.rank
    assert more >= 0, "an adapter is widened, never cut"
    weights = {
        name: _wider(name, tensor, more, factor, generator)
        for name, tensor in checkpoints.read_tensors(checkpoint / "weights.safetensors").items()
    }
    moments = {}
    for name, tensor in checkpoints.read_tensors(checkpoint / "optimizer.safetensors").items():
        # A gradient of B' = factor * B is that of B divided by the factor.
        power = -2 if name.endswith(SQUARED) else -1
        moments[name] = tensor if name.endswith("/step") else _wider(name, tensor, more, factor**power, None)
    state = json.loads((checkpoint / "state.json").read_text("utf-8"))
    step = int(checkpoint.name) if checkpoint.name.isdigit() else checkpoint.name
    return checkpoints.save(into, step, AdamWState(weights=weights, moments=moments), state)


def _wider(name: str, tensor: Tensor, more: int, factor: float, generator: torch.Generator | None) -> Tensor:
    """A [r, in] with further rows, drawn by the generator or zero without one; B [out, r] times `factor` with further columns of
    zero."""
    if ".lora_A." in name:
        rows = torch.zeros(more, tensor.shape[1])
        if generator is not None:
            bound = 1 / math.sqrt(tensor.shape[1])  # kaiming_uniform with a = sqrt(5), as peft initialises A
            rows.uniform_(-bound, bound, generator=generator)
        return torch.cat([tensor, rows.to(tensor.dtype)])
    if ".lora_B." in name:
        return torch.cat([tensor * factor, torch.zeros(tensor.shape[0], more, dtype=tensor.dtype)], dim=1)
    return tensor
