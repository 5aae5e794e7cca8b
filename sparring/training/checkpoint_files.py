"""The files of checkpoints, without what is in them: written whole or not at all, hashed, verified, found, pruned. No torch.

    checkpoints/000010/   weights.safetensors  optimizer.safetensors  optimizer.json  state.json  manifest.json

A checkpoint is written under a temporary name, its manifest of hashes last, and renamed, each file and folder forced to the
disk before the next thing rests on it; whatever has no valid manifest is no checkpoint. Which is the newest is found out, and
stands nowhere.
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
from sparring.faults import fault_point
from sparring.logs import get_logger

logger = get_logger(__name__)

FORMAT = 1
_MANIFEST = "manifest.json"
_REPLACED = ".replaced"


def name_of(step: int | str) -> str:
    """Folder name: six digits for a step, which sort; names stay as they are."""
    return step if isinstance(step, str) else f"{step:06d}"


def write(
    directory: Path,
    step: int | str,
    fill: Callable[[Path], None],
    *,
    announce: Callable[[str, str], object] = lambda name, digest: None,
) -> Path:
    """Make a checkpoint of what `fill` writes into a folder, and return its place. `announce` gets its name and its `digest`
    before it has that name. Raises OSError, and what the two raise; those that are there stay as they are."""
    target = directory / name_of(step)
    temporary = directory / f".{target.name}.tmp"
    replaced = directory / f".{target.name}{_REPLACED}"
    if not directory.exists():
        directory.mkdir(parents=True)
        _sync(directory.parent)
    if target.exists():
        # One that was on its way out when the process died still counts as long as the other is missing.
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
        announce(target.name, digest(temporary))
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
    """Delete the oldest of the numbered checkpoints up to `step`, which was written just now, until `keep` are left; `pinned`
    stays beside them. Raises OSError when the folder cannot be read."""
    fault_point("checkpoint.pruning")
    # Those with a higher number are of an abandoned future or damaged; this one must not be pruned in their favor.
    past = [path for path in numbered(directory) if int(path.name) <= step]
    for old in past[max(1, keep) :]:
        if old == pinned:
            continue
        # Without its manifest it is no checkpoint any more, however little of the rest is gone when the process dies.
        with suppress(OSError):
            (old / _MANIFEST).unlink()
        shutil.rmtree(old, ignore_errors=True)


def any_in(directory: Path) -> bool:
    """Whether a run's `checkpoints` folder holds a checkpoint, good or damaged."""
    return any(path.is_dir() for pattern in ("[!.]*", f".*{_REPLACED}") for path in directory.glob(pattern))


def newest(directory: Path) -> Path:
    """The newest good checkpoint of a run's `checkpoints` folder (or the checkpoint itself that was named).

    Numbered ones first, then named ones. Raises DataError when none is good, saying what is wrong with the newest.
    """
    if (directory / _MANIFEST).is_file():
        verify(directory)
        return directory
    first_problem: DataError | None = None
    for candidate in newest_first(directory):
        try:
            verify(candidate)
        except DataError as error:
            logger.warning("a checkpoint is passed over: %s", error)
            first_problem = first_problem or error
        else:
            return candidate
    if first_problem is not None:
        raise first_problem
    raise DataError(
        f"{directory} holds no checkpoint: none was written yet, or they were deleted; train the run first, restore them, or "
        "name another run."
    )


def newest_first(directory: Path) -> list[Path]:
    """The checkpoints of a run's `checkpoints` folder, good or damaged: numbered ones, those on their way out among them, then
    named ones."""
    if not directory.is_dir():
        return []
    named = [path for path in directory.glob("[!.]*") if path.is_dir() and not path.name.isdigit()]
    # By number, and of one number that which was on its way out last.
    replaced = directory.glob(f".*{_REPLACED}")
    by_number = sorted([*numbered(directory), *replaced], key=lambda path: (_number(path), path.name), reverse=True)
    return [*by_number, *named]


def digest(checkpoint: Path) -> str:
    """The sha256 of its manifest, which holds those of its files. Raises OSError when there is none."""
    return _sha256(checkpoint / _MANIFEST)


def best(directory: Path, scores: Mapping[int, float]) -> Path | None:
    """The numbered checkpoint whose step has the highest score, of equals the earliest; None where none has a score."""
    scored = [path for path in numbered(directory) if int(path.name) in scores and (path / _MANIFEST).is_file()]
    return max(scored, key=lambda path: (scores[int(path.name)], -int(path.name)), default=None)


def set_aside(directory: Path, into: Path, *, since: int) -> list[Path]:
    """Move the checkpoints of step `since` and later elsewhere; where they are now, newest first."""
    moved = []
    for path in numbered(directory):
        if int(path.name) >= since:
            into.mkdir(exist_ok=True)
            shutil.rmtree(into / path.name, ignore_errors=True)
            moved.append(path.rename(into / path.name))
    return moved


def verify(checkpoint: Path) -> None:
    """Raises DataError naming the file that is missing or does not have the hash of the manifest."""
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


def numbered(directory: Path) -> list[Path]:
    """The checkpoints of steps, good or damaged, newest first."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if path.is_dir() and path.name.isdigit()), reverse=True)


def original_name(path: Path) -> str:
    """The name of a checkpoint, also of one on its way out."""
    return path.name.removesuffix(_REPLACED).lstrip(".")


def _number(path: Path) -> int:
    """Of a numbered checkpoint; -1 of others."""
    name = original_name(path)
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
