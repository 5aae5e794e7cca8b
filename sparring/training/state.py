"""Hold a separate copy of an AdamW learner's state, so that it can be written while training continues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from safetensors.torch import save_file
from torch import Tensor

from sparring.runtime.faults import fault_point
from sparring.runtime.private_files import write_private

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""The values that AdamW keeps for each trained tensor."""


@final
@dataclass(frozen=True, slots=True)
class AdamWState:
    """A learner's weights and moments in CPU memory. They never change. Implements `protocols.LearnerState`."""

    weights: Mapping[str, Tensor]
    """The trained tensors, by name."""
    moments: Mapping[str, Tensor]
    """The moments by `<name of a weight>/<one of MOMENTS>`; empty before the first step."""

    def write(self, directory: Path) -> None:
        """Write weights.safetensors, optimizer.safetensors and optimizer.json into an existing directory."""
        save_file(dict(self.weights), directory / "weights.safetensors")
        save_file(dict(self.moments), directory / "optimizer.safetensors")
        fault_point("checkpoint.staging")
        write_private(directory / "optimizer.json", json.dumps({"optimizer": "AdamW"}))
