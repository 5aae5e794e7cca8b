"""Save and load checkpoints of a learner. A checkpoint is either complete or absent, is verified when it is loaded, and
never contains a pickle.

`checkpoint_files` handles their files.
"""

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
from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import write_private
from sparring.training.checkpoint_files import (
    find_best,
    find_newest,
    format_name,
    get_original_name,
    has_checkpoint,
    hash_checkpoint,
    list_numbered,
    prune,
    set_aside,
    verify,
    write,
)
from sparring.types import Json, Weights

__all__ = [
    "find_best",
    "find_newest",
    "format_name",
    "get_original_name",
    "has_checkpoint",
    "hash_checkpoint",
    "list_numbered",
    "load",
    "load_weights",
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
    """Write a checkpoint of a learner's state and the run's `state`, and return its folder.

    `announce` is called with the checkpoint's name and digest before the checkpoint gets this name. Raises DiskError if it
    cannot be written; existing checkpoints are then unchanged.
    """

    def fill(folder: Path) -> None:
        learner.write(folder)
        write_private(folder / "state.json", json.dumps(dict(state), indent=1))

    try:
        return write(directory, step, fill, announce=announce)
    except (OSError, SafetensorError) as error:
        raise DiskError(
            f"{directory / format_name(step)} could not be written: {error}. Earlier checkpoints are intact. "
            "Free up space on that disk."
        ) from error


def load(checkpoint: Path, learner: Learner) -> dict[str, Any]:
    """Restore the learner, and return the saved state. Raises DataError if the checkpoint is damaged or does not fit."""
    verify(checkpoint)
    learner.load_state(checkpoint)
    return parse_json((checkpoint / "state.json").read_text("utf-8"))


def load_weights(checkpoint: Path, policy: Policy) -> Weights:
    """Return only the weights, after checking that they fit a policy. Raises DataError if the checkpoint is damaged or
    does not fit."""
    weights = read_weights(checkpoint)
    problem = policy.misfit(weights.tensors)
    if problem is not None:
        raise DataError(
            f"{checkpoint} does not fit this model: {problem}. Use the recipe that the checkpoint was trained with."
        )
    return weights


def read_weights(checkpoint: Path) -> Weights:
    """Return only the weights, without checking them against a model. Raises DataError if the checkpoint is damaged."""
    verify(checkpoint)
    tensors = read_tensors(checkpoint / "weights.safetensors")
    return Weights(tensors=tensors, fingerprint=fingerprint(tensors))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file. Raises DataError if the file is missing or invalid."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}. Use another checkpoint.") from error
