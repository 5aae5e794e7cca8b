"""Checkpoints: complete or absent, hashed, verified on load, never a pickle.

    checkpoints/000010/   weights.safetensors  optimizer.safetensors  optimizer.json  state.json  manifest.json

A checkpoint is written under a temporary name, its manifest of hashes last, and renamed; whatever has no valid
manifest is no checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from sparring.errors import DataError
from sparring.models.policy import Policy, fingerprint
from sparring.protocols import Learner
from sparring.types import Json, Weights

FORMAT = 1


def name_of(step: int | str) -> str:
    """Folder name: six digits for a step, which sort; names stay as they are."""
    return step if isinstance(step, str) else f"{step:06d}"


def save(directory: Path, step: int | str, learner: Learner, state: Mapping[str, Json], *, keep: int | None = None) -> Path:
    """Write a checkpoint; afterwards only the `keep` newest numbered ones stay. Returns its folder."""
    directory.mkdir(parents=True, exist_ok=True)
    final = directory / name_of(step)
    temporary = directory / f".{name_of(step)}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    learner.save_state(temporary)
    (temporary / "state.json").write_text(json.dumps(dict(state), indent=1), "utf-8")
    files = sorted(path for path in temporary.iterdir())
    manifest = {"format": FORMAT, "files": {path.name: _sha256(path) for path in files}}
    for path in files:
        _sync(path)
    (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1), "utf-8")
    _sync(temporary / "manifest.json")
    if final.exists():
        shutil.rmtree(final)
    os.rename(temporary, final)
    _sync(directory)
    if keep is not None:
        for old in _numbered(directory)[keep:]:
            shutil.rmtree(old)
    return final


def newest(directory: Path) -> Path:
    """The newest good checkpoint of a run's `checkpoints` folder (or the checkpoint itself that was named).

    Numbered ones first, then named ones. Raises DataError when none is good, saying what is wrong with the newest.
    """
    if (directory / "manifest.json").is_file():
        verify(directory)
        return directory
    named = [path for path in directory.glob("[!.]*") if path.is_dir() and not path.name.isdigit()] if directory.is_dir() else []
    first_problem: DataError | None = None
    for candidate in [*_numbered(directory), *named]:
        try:
            verify(candidate)
        except DataError as error:
            first_problem = first_problem or error
        else:
            return candidate
    if first_problem is not None:
        raise first_problem
    raise DataError(f"{directory} holds no checkpoint; train the run first, or name another run.")


def verify(checkpoint: Path) -> None:
    """Raises DataError naming the file that is missing or does not have the hash of the manifest."""
    try:
        manifest = json.loads((checkpoint / "manifest.json").read_text("utf-8"))
        files: dict[str, str] = manifest["files"]
        known = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{checkpoint} has no readable manifest.json ({error}), so it is not a complete checkpoint; use another one.") from error
    if known != FORMAT:
        raise DataError(f"{checkpoint} has format {known}, this version reads format {FORMAT}; use the version that wrote it.")
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            raise DataError(f"{checkpoint} lacks {name}, which its manifest lists; use another checkpoint.")
        if _sha256(path) != expected:
            raise DataError(f"{path} does not have the content its manifest lists: it was changed or damaged; use another checkpoint.")


def load(checkpoint: Path, learner: Learner) -> dict[str, Any]:
    """Restore the learner and return the saved state. Raises DataError for damaged or unfitting checkpoints."""
    verify(checkpoint)
    learner.load_state(checkpoint)
    return json.loads((checkpoint / "state.json").read_text("utf-8"))


def load_weights(checkpoint: Path, policy: Policy) -> Weights:
    """The weights alone, checked against a policy. Raises DataError for damaged or unfitting checkpoints."""
    verify(checkpoint)
    tensors = load_file(checkpoint / "weights.safetensors")
    problem = policy.misfit(tensors)
    if problem is not None:
        raise DataError(f"{checkpoint} does not fit this model: {problem}. Use the recipe it was trained with.")
    return Weights(tensors=tensors, fingerprint=fingerprint(tensors))


def _numbered(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if path.is_dir() and path.name.isdigit()), reverse=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
