"""What a learner with AdamW goes on from, apart from the learner, so that it can be written while the learner trains on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from safetensors.torch import save_file
from torch import Tensor

from sparring.faults import fault_point

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps for each trained tensor."""


@final
@dataclass(frozen=True, slots=True)
class AdamWState:
    """Implements `protocols.LearnerState`. Tensors are in the memory of the CPU, and nobody changes them."""

    weights: Mapping[str, Tensor]
    """What is trained, by name."""
    moments: Mapping[str, Tensor]
    """`<name of a weight>/<one of MOMENTS>`; none before the first step."""

    def write(self, directory: Path) -> None:
        """weights.safetensors, optimizer.safetensors and optimizer.json, into an existing directory."""
        save_file(dict(self.weights), directory / "weights.safetensors")
        save_file(dict(self.moments), directory / "optimizer.safetensors")
        fault_point("checkpoint.staging")
        (directory / "optimizer.json").write_text(json.dumps({"optimizer": "AdamW"}), "utf-8")
