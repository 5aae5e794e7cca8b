"""Restore a run folder from its copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from sparring.copies.manifest import (
    BLOCK_BYTES,
    CopyManifest,
    FileEntry,
    hash_block,
    name_block,
    parse_name,
    read_newest,
)
from sparring.copies.store import Store
from sparring.errors import DataError
from sparring.run_folders import RunFolder
from sparring.run_folders.locks import LOCK, hold_lock
from sparring.run_folders.recipe_files import RUN_RECIPE
from sparring.runtime.faults import fault_point
from sparring.runtime.private_files import OWNER_ONLY, create_folder, open_private

MAX_ATTEMPTS = 3
"""How often a copy is read again because its run has replaced it in the meantime."""


class _Replaced(Exception):
    pass


def fetch(url: str, runs_dir: Path, *, say: Callable[[str], object]) -> RunFolder:
    """Restore the newest complete copy at `url` as a run folder below `runs_dir`, and return the folder.

    The folder gets its name when all its files are there and have the hashes of the copy. An interrupted restore
    continues where it stopped. Raises ServiceError if the store cannot be read. Raises DataError if there is no complete
    copy, if the copy is damaged, if a run of this name exists, or if another process is fetching it.
    """
    store = Store(url)
    name = PurePosixPath(store.url).name
    target = runs_dir / name
    _refuse_existing(target)
    temporary = runs_dir / f".{name}.fetch"
    refusal = DataError(
        f"another `sparring runs fetch` writes {temporary} now; wait for its end, or fetch the copy into another --runs-dir."
    )
    for attempt in range(1, MAX_ATTEMPTS + 1):
        newest = read_newest(store)
        if newest is None:
            raise DataError(
                f"{url} contains no complete copy of a run; give the address of one run, run.copy_to with the run's name."
            )
        listed, manifest = newest
        if RUN_RECIPE not in manifest.files:
            raise DataError(f"{url} contains no {RUN_RECIPE}, so it is not the copy of a run.")
        say(f"fetching step {manifest.step} of {name}: {len(manifest.files)} files, {_read_size(manifest)}")
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            create_folder(temporary, exist_ok=True)
            with hold_lock(temporary, refusal):
                _refuse_existing(target)  # another process may have fetched it in the meantime
                _fill(store, parse_name(listed)[0], manifest, temporary)
                temporary.rename(target)
            break
        except _Replaced as error:
            again = read_newest(store)
            if attempt == MAX_ATTEMPTS or again is None or again[0] == listed:
                raise DataError(
                    f"{url} is damaged: {error}. Objects of a copy must not be deleted, also not by a rule of the store "
                    "for old objects."
                ) from None
    _sync(runs_dir)
    return RunFolder(target)


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise DataError(
            f"{target} exists; a run is never overwritten. Resume it with `sparring train --resume {target}`, or fetch the "
            "copy into another --runs-dir."
        )


def _fill(store: Store, generation: str, manifest: CopyManifest, folder: Path) -> None:
    """Make a locked folder contain exactly the files of a manifest."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and str(path.relative_to(folder)) not in {LOCK, *manifest.files}:
            path.unlink()
        elif path.is_dir():
            with suppress(OSError):  # it is not empty
                path.rmdir()
    # The recipe makes a folder a run, so it comes last.
    for name, entry in sorted(manifest.files.items(), key=lambda item: item[0] == RUN_RECIPE):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{store.url} lists {name!r}, which is outside of the run folder; the copy is damaged.")
        if not _has(path, entry):
            _write(store, generation, entry, path)
        path.chmod(entry.mode & OWNER_ONLY)
        os.utime(path, ns=(entry.modified, entry.modified))
    for path in {folder, *(path for path in folder.rglob("*") if path.is_dir())}:
        _sync(path)


def _has(path: Path, entry: FileEntry) -> bool:
    """Return whether a file has the content of an entry, from an earlier attempt."""
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    with path.open("rb") as file:
        return all(hash_block(file.read(BLOCK_BYTES)) == block for block in entry.blocks)


def _write(store: Store, generation: str, entry: FileEntry, path: Path) -> None:
    create_folder(path.parent, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open_private(path, "wb") as file:
        for block in entry.blocks:
            fault_point("copy.fetching")
            content = store.read(name_block(generation, block))
            if content is None:
                raise _Replaced(f"block {block[:12]} of {path.name} is missing")
            if hash_block(content) != block:
                raise _Replaced(f"block {block[:12]} of {path.name} has another content than its name states")
            file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read_size(manifest: CopyManifest) -> str:
    return f"{sum(entry.size for entry in manifest.files.values()) / 1e6:.1f} MB"


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
