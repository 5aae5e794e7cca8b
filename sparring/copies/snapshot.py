"""Take a snapshot of a run folder while the run goes on.

Checkpoints are read first, then the other files, and the ledger last. Therefore, the ledger of a snapshot has announced
each checkpoint of the snapshot and contains the step in its `status.json`: resuming refuses anything else. If the run
publishes a checkpoint in between, the snapshot is taken again, so that the ledger's newest checkpoint is in it.

Each changed file is pinned with a hard link, so that it can be sent while the run replaces or deletes it. Files that
grow are cut at the length that they had.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sparring.copies.manifest import FileEntry
from sparring.errors import DiskError
from sparring.ledger.reading import back_up
from sparring.run_folders import RunFolder
from sparring.run_folders.links import leads_outside
from sparring.run_folders.locks import CONTROL_LOCK, LOCK
from sparring.run_folders.run_folder import ENGINE, LEDGER, PAUSE, STOP
from sparring.runtime.faults import fault_point
from sparring.runtime.private_files import create_folder
from sparring.training.disk_space import measure_free_bytes

STAGE = ".copy"
CLAIM = "copy.json"
"""The file of a run folder that states which copy it writes. It is not copied."""
CHECKPOINTS = ("checkpoints", "controls", "set_aside")
_LEFT_OUT = frozenset(
    {
        ENGINE,
        "learner",
        LOCK,
        CONTROL_LOCK,
        STOP,
        PAUSE,
        CLAIM,
        "mlflow.lock",
        "tensorboard.lock",
        "wandb.lock",
        "wandb",
    }
)
"""Entries of a run folder that belong to its processes, or that they write again."""
_RESERVE_BYTES = 64 * 2**20
"""Disk space that the copy of the ledger leaves free."""
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Staged:
    """One file of a snapshot."""

    source: Path
    """Where its content is while the snapshot exists."""
    size: int
    modified: int
    mode: int
    is_new: bool
    """Whether it differs from the previous copy."""


@dataclass(slots=True)
class Snapshot:
    """The files of a run at one moment, by path in the run folder."""

    files: dict[str, Staged] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    """Links to folders, and to other places that the run did not make, which are left out."""


@contextmanager
def take_snapshot(folder: RunFolder, previous: Mapping[str, FileEntry]) -> Iterator[Snapshot]:
    """Yield a snapshot of a run folder. `previous` lists the files of the previous copy.

    Raises OSError, DiskError if there is no space for a copy of the ledger, and the errors of `reading.open_ledger`.
    """
    stage = folder.path / STAGE
    try:
        for attempt in range(MAX_ATTEMPTS):
            shutil.rmtree(stage, ignore_errors=True)
            create_folder(stage)
            snapshot = Snapshot()
            newest = _fill(folder, snapshot, previous, _pinner(stage))
            if newest is None or f"checkpoints/{newest}/manifest.json" in snapshot.files:
                break
            time.sleep(0.1 * attempt)
        yield snapshot
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _fill(
    folder: RunFolder, snapshot: Snapshot, previous: Mapping[str, FileEntry], pin: Callable[[Path], Path]
) -> str | None:
    """Add the files of a run. Return the name of the newest checkpoint that the ledger lists, or None."""
    run = folder.path

    def add(path: Path) -> None:
        name = str(path.relative_to(run))
        before = previous.get(name)
        stat = path.stat()
        is_new = before is None or (before.size, before.modified) != (stat.st_size, stat.st_mtime_ns)
        source = path
        if is_new and not path.is_symlink():
            source = pin(path)
            stat = source.stat()
        snapshot.files[name] = Staged(source, stat.st_size, stat.st_mtime_ns, stat.st_mode & 0o777, is_new)

    for parent in CHECKPOINTS:
        for checkpoint in _entries(run / parent):
            _add_checkpoint(checkpoint, run, snapshot, add)
    databases = []
    for entry in _entries(run):
        if entry.name in _LEFT_OUT or entry.name in CHECKPOINTS or entry.name.endswith(("-wal", "-shm")):
            continue
        if entry.suffix == ".sqlite":
            databases.append(entry)
            continue
        for path in _files_below(entry, run, snapshot):
            with suppress(FileNotFoundError):  # a file that the run has just deleted
                add(path)
    fault_point("copy.staged")
    # A delivery to MLflow records its progress in a file, so its database is read after this file.
    newest: str | None = None
    for database in sorted(databases, key=lambda path: path.name == LEDGER):
        _check_room(database)
        copy = run / STAGE / database.name
        published = back_up(database, copy, is_ledger=database.name == LEDGER)
        newest = published[max(published)] if published else newest
        stat = database.stat()
        snapshot.files[database.name] = Staged(
            copy, copy.stat().st_size, stat.st_mtime_ns, stat.st_mode & 0o777, is_new=True
        )
    return newest


def _add_checkpoint(checkpoint: Path, run: Path, snapshot: Snapshot, add: Callable[[Path], None]) -> None:
    """Add a checkpoint with all its files, or nothing if the run is deleting it."""
    before = dict(snapshot.files)
    with suppress(FileNotFoundError):
        for path in _files_below(checkpoint, run, snapshot):
            add(path)
    # A checkpoint is deleted manifest first: if the manifest exists now, all files existed when they were added.
    if not (checkpoint / "manifest.json").is_file():
        snapshot.files.clear()
        snapshot.files.update(before)


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, except for hidden ones, which are temporary."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []


def _files_below(path: Path, run: Path, snapshot: Snapshot) -> Iterator[Path]:
    """Yield the files below a path at any depth, including the links that the run made to large files."""
    if path.is_symlink() and (not path.is_file() or leads_outside(path, run)):
        snapshot.links.append(str(path))
    elif path.is_file():
        yield path
    elif path.is_dir():
        for entry in _entries(path):
            yield from _files_below(entry, run, snapshot)


def _pinner(stage: Path) -> Callable[[Path], Path]:
    """Return a function that makes the current content of a file available at a new path."""
    number = 0

    def pin(path: Path) -> Path:
        nonlocal number
        number += 1
        pinned = stage / str(number)
        try:
            os.link(path, pinned)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without hard links
            shutil.copy2(path, pinned)
        return pinned

    return pin


def _check_room(database: Path) -> None:
    size = sum(path.stat().st_size for path in (database, database.with_name(f"{database.name}-wal")) if path.exists())
    if measure_free_bytes(database.parent) < size + _RESERVE_BYTES:
        raise DiskError(f"{database.parent} has no space for a second copy of {database.name} ({size} bytes).")
