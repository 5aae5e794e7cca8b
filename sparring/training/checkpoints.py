"""Checkpoints of a learner: complete or absent, verified on load, never a pickle. `checkpoint_files` has their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sparring.errors import DataError, DiskError
from sparring.models.policy import Policy, fingerprint
from sparring.protocols import Learner, LearnerState
from sparring.training.checkpoint_files import (
    any_in,
    best,
    digest,
    name_of,
    newest,
    numbered,
    original_name,
    prune,
    set_aside,
    verify,
    write,
)
from sparring.types import Json, Weights

__all__ = [
    "any_in",
    "best",
    "digest",
    "load",
    "load_weights",
    "name_of",
    "newest",
    "numbered",
    "original_name",
    "prune",
    "read_tensors",
    "read_weights",
    "save",
    "set_aside",
    "verify",
]


def save(
    directory: Path,
    step: int | str,
    learner: LearnerState,
    state: Mapping[str, Json],
    *,
    announce: Callable[[str, str], object] = lambda name, digest: None,
) -> Path:
    """Write a checkpoint of what a learner was and of where the run stood, and return its folder. `announce` gets its name and
    its digest before it has that name.

    Raises DiskError when it cannot be written; checkpoints that are there stay as they are.
    """

    def fill(folder: Path) -> None:
        learner.write(folder)
        (folder / "state.json").write_text(json.dumps(dict(state), indent=1), "utf-8")

    try:
        return write(directory, step, fill, announce=announce)
    except (OSError, SafetensorError) as error:
        raise DiskError(
            f"{directory / name_of(step)} could not be written: {error}. Earlier checkpoints are intact; make room there."
        ) from error


def load(checkpoint: Path, learner: Learner) -> dict[str, Any]:
    """Restore the learner and return the saved state. Raises DataError for damaged or unfitting checkpoints."""
    verify(checkpoint)
    learner.load_state(checkpoint)
    return json.loads((checkpoint / "state.json").read_text("utf-8"))


def load_weights(checkpoint: Path, policy: Policy) -> Weights:
    """The weights alone, checked against a policy. Raises DataError for damaged or unfitting checkpoints."""
    weights = read_weights(checkpoint)
    problem = policy.misfit(weights.tensors)
    if problem is not None:
        raise DataError(f"{checkpoint} does not fit this model: {problem}. Use the recipe it was trained with.")
    return weights


def read_weights(checkpoint: Path) -> Weights:
    """The weights alone, whatever model they are of. Raises DataError for damaged checkpoints."""
    verify(checkpoint)
    tensors = read_tensors(checkpoint / "weights.safetensors")
    return Weights(tensors=tensors, fingerprint=fingerprint(tensors))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises DataError when there is none, or it is not one."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}. Use another checkpoint.") from error
