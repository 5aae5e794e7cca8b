"""Write checkpoints of any content atomically, and hash, verify, find and prune them. This module does not import torch.

    checkpoints/000010/   weights.safetensors  optimizer.safetensors  optimizer.json  state.json  manifest.json

A checkpoint is written under a temporary name, with its manifest of hashes last, and then renamed. Each file and folder
is flushed to disk before the next operation depends on it. A folder without a valid manifest is not a checkpoint. No
file records which checkpoint is the newest; the folder is listed to find it.
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
from sparring.run_folders.formats import require_format
from sparring.runtime.faults import fault_point
from sparring.runtime.logs import get_logger

logger = get_logger(__name__)

FORMAT = 1
_MANIFEST = "manifest.json"
_REPLACED = ".replaced"


def format_name(step: int | str) -> str:
    """Return the folder name: at least six digits for a step, so that the names sort in order of steps. A string is
    returned unchanged."""
    return step if isinstance(step, str) else f"{step:06d}"


def write(
    directory: Path,
    step: int | str,
    fill: Callable[[Path], None],
    *,
    announce: Callable[[str, str], object] = lambda name, digest: None,
) -> Path:
    """Create a checkpoint from the files that `fill` writes into a folder, and return its path.

    `announce` is called with the checkpoint's name and hash before the checkpoint gets this name. Raises OSError, and
    the exceptions that the two functions raise. If an error occurs, existing checkpoints stay unchanged.
    """
    target = directory / format_name(step)
    temporary = directory / f".{target.name}.tmp"
    replaced = directory / f".{target.name}{_REPLACED}"
    if not directory.exists():
        directory.mkdir()
        _sync(directory.parent)
    if target.exists():
        # A checkpoint that was being replaced when the process died still counts until the new one exists.
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
    """Delete the oldest numbered checkpoints up to `step` until `keep` are left.

    `step` was just written. `pinned` is also kept. Raises OSError if the folder cannot be read.
    """
    fault_point("checkpoint.pruning")
    # Checkpoints with higher numbers are damaged or from abandoned steps. The new checkpoint must not be deleted in
    # favor of them.
    past = [path for path in list_numbered(directory) if int(path.name) <= step]
    for old in past[max(1, keep) :]:
        if old == pinned:
            continue
        # The manifest is deleted first, so that the folder is no longer a checkpoint even if the process dies now.
        with suppress(OSError):
            (old / _MANIFEST).unlink()
        shutil.rmtree(old, ignore_errors=True)


def has_checkpoint(directory: Path) -> bool:
    """Return whether a run's `checkpoints` folder contains a checkpoint, valid or damaged."""
    return any(path.is_dir() for pattern in ("[!.]*", f".*{_REPLACED}") for path in directory.glob(pattern))


def find_newest(directory: Path) -> Path:
    """Return the newest valid checkpoint of a run's `checkpoints` folder, or `directory` itself if it is a checkpoint.

    Numbered checkpoints come before named ones. If no checkpoint is valid, raises DataError with the problem of the
    newest one.
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
        f"{directory} contains no checkpoint: none was written yet, or all were deleted; train the run first, restore a "
        "checkpoint, or specify another run."
    )


def list_newest_first(directory: Path) -> list[Path]:
    """Return the checkpoints of a run's `checkpoints` folder, valid or damaged.

    Numbered checkpoints, including those that are being replaced, come before named ones.
    """
    if not directory.is_dir():
        return []
    named = [path for path in directory.glob("[!.]*") if path.is_dir() and not path.name.isdigit()]
    # They are sorted by number. For equal numbers, the checkpoint that was being replaced comes last.
    replaced = directory.glob(f".*{_REPLACED}")
    by_number = sorted(
        [*list_numbered(directory), *replaced], key=lambda path: (_number(path), path.name), reverse=True
    )
    return [*by_number, *named]


def hash_checkpoint(checkpoint: Path) -> str:
    """Return the SHA-256 of a checkpoint's manifest, which contains the hashes of its files.

    Raises OSError if there is no manifest.
    """
    return _sha256(checkpoint / _MANIFEST)


def find_best(directory: Path, scores: Mapping[int, float]) -> Path | None:
    """Return the numbered checkpoint whose step has the highest score, or None if no checkpoint has a score.

    If scores are equal, the earliest checkpoint is returned.
    """
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
    """Check the files of a checkpoint. Raises DataError, which names the affected file, if a file is missing or does
    not match its hash."""
    try:
        manifest = json.loads((checkpoint / _MANIFEST).read_text("utf-8"))
        known, files = manifest["format"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{checkpoint} has no readable manifest.json ({error!r}), so it is not a complete checkpoint; use another one."
        ) from error
    require_format(checkpoint, known, FORMAT, otherwise="use another checkpoint")
    if "state.json" not in files:
        raise DataError(
            f"{checkpoint}/manifest.json does not list state.json: the manifest was changed; use another checkpoint."
        )
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            raise DataError(f"{checkpoint} lacks {name}, which its manifest lists; use another checkpoint.")
        if _sha256(path) != expected:
            raise DataError(
                f"{path} does not have the hash that its manifest lists: the file was changed or damaged; use another "
                "checkpoint."
            )


def list_numbered(directory: Path) -> list[Path]:
    """Return the numbered checkpoints, valid or damaged, newest first."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if path.is_dir() and path.name.isdigit()), reverse=True)


def get_original_name(path: Path) -> str:
    """Return the original name of a checkpoint, even if the checkpoint is being replaced."""
    return path.name.removesuffix(_REPLACED).lstrip(".")


def _number(path: Path) -> int:
    """Return the step of a numbered checkpoint, or -1 for other checkpoints."""
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
