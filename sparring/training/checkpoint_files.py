"""The files of checkpoints, whatever their content: write atomically, hash, verify, find and prune. Imports no torch.

    checkpoints/000010/   weights.safetensors  optimizer.safetensors  optimizer.json  state.json  manifest.json

A checkpoint is written under a temporary name, with its manifest of hashes last, and then renamed. Each file and folder is
flushed to disk before the next step depends on it. A folder without a valid manifest is not a checkpoint. No file names the
newest checkpoint: it is found by looking.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sparring.errors import DataError
from sparring.runtime.faults import fault_point
from sparring.runtime.logs import get_logger

logger = get_logger(__name__)

FORMAT = 1
_MANIFEST = "manifest.json"
_REPLACED = ".replaced"


def format_name(step: int | str) -> str:
    """Return the folder name: at least six digits for a step, so that names sort; a text stays as it is."""
    return step if isinstance(step, str) else f"{step:06d}"


def write(
    directory: Path,
    step: int | str,
    fill: Callable[[Path], None],
    *,
    announce: Callable[[str, str], object] = lambda name, digest: None,
) -> Path:
    """Create a checkpoint from the files that `fill` writes into a folder, and return its path.

    `announce` is called with its name and its hash before it gets that name. Raises OSError, and what the two functions
    raise; existing checkpoints are then unchanged.
    """
    target = directory / format_name(step)
    temporary = directory / f".{target.name}.tmp"
    replaced = directory / f".{target.name}{_REPLACED}"
    if not directory.exists():
        directory.mkdir(parents=True)
        _sync(directory.parent)
    if target.exists():
        # One that was being replaced when the process died still counts as long as the new one is missing.
        shutil.rmtree(replaced, ignore_errors=True)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        fill(temporary)
        files = sorted(temporary.iterdir())
        for path in files:
            _sync(path)
        manifest = {"format": FORMAT, "files": {path.name: _sha256(path) for path in files}}
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
        _sync(temporary / _MANIFEST)
        _sync(temporary)
        announce(target.name, hash_checkpoint(temporary))
        fault_point("checkpoint.renaming")
        if target.exists():
            target.rename(replaced)
        temporary.rename(target)
        _sync(directory)
    except Exception:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
    fault_point("checkpoint.renamed")
    return target


def prune(directory: Path, step: int, *, keep: int, pinned: Path | None = None) -> None:
    """Delete the oldest numbered checkpoints up to `step`, which was just written, until `keep` are left. `pinned` is kept in
    addition. Raises OSError when the folder cannot be read."""
    fault_point("checkpoint.pruning")
    # Higher numbers are from steps that were abandoned, or are damaged; the new one must not be pruned in their favor.
    past = [path for path in list_numbered(directory) if int(path.name) <= step]
    for old in past[max(1, keep) :]:
        if old == pinned:
            continue
        # The manifest is deleted first: without it the folder is not a checkpoint, even if the process dies before the rest.
        with suppress(OSError):
            (old / _MANIFEST).unlink()
        shutil.rmtree(old, ignore_errors=True)


def has_checkpoint(directory: Path) -> bool:
    """Return whether a run's `checkpoints` folder contains a checkpoint, valid or damaged."""
    return any(path.is_dir() for pattern in ("[!.]*", f".*{_REPLACED}") for path in directory.glob(pattern))


def find_newest(directory: Path) -> Path:
    """Return the newest valid checkpoint of a run's `checkpoints` folder, or `directory` itself where it is a checkpoint.

    Numbered checkpoints come first, then named ones. Raises DataError when none is valid, with the problem of the newest.
    """
    if (directory / _MANIFEST).is_file():
        verify(directory)
        return directory
    first_problem: DataError | None = None
    for candidate in list_newest_first(directory):
        try:
            verify(candidate)
        except DataError as error:
            logger.warning("a checkpoint is skipped: %s", error)
            first_problem = first_problem or error
        else:
            return candidate
    if first_problem is not None:
        raise first_problem
    raise DataError(
        f"{directory} contains no checkpoint: none was written yet, or they were deleted; train the run first, restore them, or "
        "name another run."
    )


def list_newest_first(directory: Path) -> list[Path]:
    """Return the checkpoints of a run's `checkpoints` folder, valid or damaged: numbered ones, including those that are being
    replaced, then named ones."""
    if not directory.is_dir():
        return []
    named = [path for path in directory.glob("[!.]*") if path.is_dir() and not path.name.isdigit()]
    # By number; for equal numbers, the one that was being replaced comes last.
    replaced = directory.glob(f".*{_REPLACED}")
    by_number = sorted(
        [*list_numbered(directory), *replaced], key=lambda path: (_number(path), path.name), reverse=True
    )
    return [*by_number, *named]


def hash_checkpoint(checkpoint: Path) -> str:
    """Return the sha256 of a checkpoint's manifest, which contains the hashes of its files. Raises OSError without a
    manifest."""
    return _sha256(checkpoint / _MANIFEST)


def find_best(directory: Path, scores: Mapping[int, float]) -> Path | None:
    """Return the numbered checkpoint whose step has the highest score, the earliest among equals; None where none has a
    score."""
    scored = [path for path in list_numbered(directory) if int(path.name) in scores and (path / _MANIFEST).is_file()]
    return max(scored, key=lambda path: (scores[int(path.name)], -int(path.name)), default=None)


def set_aside(directory: Path, into: Path, *, since: int) -> list[Path]:
    """Move the checkpoints of step `since` and later to `into`. Return their new paths, newest first."""
    moved = []
    for path in list_numbered(directory):
        if int(path.name) >= since:
            into.mkdir(exist_ok=True)
            shutil.rmtree(into / path.name, ignore_errors=True)
            moved.append(path.rename(into / path.name))
    return moved


def verify(checkpoint: Path) -> None:
    """Check the files of a checkpoint. Raises DataError that names a file that is missing or does not match its hash."""
    try:
        manifest = json.loads((checkpoint / _MANIFEST).read_text("utf-8"))
        known, files = manifest["format"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{checkpoint} has no readable manifest.json ({error!r}), so it is no complete checkpoint; use another one."
        ) from error
    if known != FORMAT:
        raise DataError(
            f"{checkpoint} has format {known!r}, this version reads format {FORMAT}; use the version that wrote it."
        )
    if "state.json" not in files:
        raise DataError(f"{checkpoint}/manifest.json does not list state.json: it was changed; use another checkpoint.")
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            raise DataError(f"{checkpoint} lacks {name}, which its manifest lists; use another checkpoint.")
        if _sha256(path) != expected:
            raise DataError(
                f"{path} does not have the hash its manifest lists: it was changed or damaged; use another checkpoint."
            )


def list_numbered(directory: Path) -> list[Path]:
    """Return the checkpoints of steps, valid or damaged, newest first."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if path.is_dir() and path.name.isdigit()), reverse=True)


def get_original_name(path: Path) -> str:
    """Return the name of a checkpoint, also of one that is being replaced."""
    return path.name.removesuffix(_REPLACED).lstrip(".")


def _number(path: Path) -> int:
    """Return the step of a numbered checkpoint; -1 for others."""
    name = get_original_name(path)
    return int(name) if name.isdigit() else -1


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
