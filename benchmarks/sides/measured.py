"""The measurements that both sides of a comparison make in the same way."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The work of one side: totals over its optimizer steps, without loading and startup."""

    num_trajectories: int
    step_seconds: Sequence[float]
    """Wall time of each step: episodes, reward, forward, backward, optimizer, and the switch to the new weights."""
    num_sampled_tokens: int
    num_trained_tokens: int
    num_computed_tokens: int
    """Number of input ids of all forward passes, including padding, also of those that begin above frozen layers."""
    num_turns: Sequence[int]
    """Of each trajectory."""
    prompts: Sequence[Sequence[int]]
    """Prompt ids of each trajectory's first turn."""
    num_adapter_parameters: int
    precision: str
    peak_memory_gib: float
    computed_per_distinct: Mapping[str, float] = field(default_factory=dict)
    """Computed tokens per different token, in rollouts and in training, if the side reports it."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), "utf-8")


@dataclass(slots=True)
class Forwards:
    """Counts embedded tokens, since a forward pass of transformers starts with `torch.nn.functional.embedding`."""

    num_tokens: int = 0
    first: list[Tensor] = field(default_factory=list)
    """Input ids of the first forward pass since the list was last emptied."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        original = functional.embedding

        def counting(input: Tensor, weight: Tensor, *arguments: object, **options: object) -> Tensor:
            self.num_tokens += input.numel()
            if not self.first:
                self.first.append(input.detach().clone())
            return original(input, weight, *arguments, **options)  # pyright: ignore[reportArgumentType]

        functional.embedding = counting
        try:
            yield
        finally:
            functional.embedding = original


def peak_memory_gib() -> float:
    """Return the peak resident size of this process so far, including imports and loading."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def num_trained(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
