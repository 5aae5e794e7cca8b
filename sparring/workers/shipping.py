"""The files of a recipe on their way to another machine: the run lists them with their hashes and sends those that a
worker does not have, and the worker writes them into a folder of its cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias, final

from sparring.errors import DataError, DiskError, ServiceError, UsageError
from sparring.run_folders.recipe_files import RecipeFiles, sha256

MOST_BYTES: Final = 256 * 2**20
"""The largest size of all files together that is sent to a worker."""

KEPT_FOLDERS: Final = 20
"""The number of folders of the cache that are kept: those that were used last."""
KEPT_SECONDS: Final = 24 * 3600.0
"""Folders that were used in this time are kept, because another command may use them."""

Listing: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The `bytes` and the `sha256` of each file, and whether it is `executable`, by its path in the recipe's folder."""


@final
class SentFiles:
    """The files that a run sends to workers, as they are when this object is created."""

    def __init__(self, files: RecipeFiles) -> None:
        """List the files. This reads all of them.

        Raises UsageError for a name that workers do not accept, and ServiceError for a file that cannot be read.
        """
        self._folder = files.folder
        self.listing: Listing = {path.as_posix(): self._describe(path) for path in files.copied}
        self.left_out = tuple(path.as_posix() for path in files.linked)
        """Large files and folders, which are never sent."""

    def check_size(self) -> None:
        """Raise ServiceError if the files are too large to be sent."""
        if (num_bytes := count_bytes(self.listing)) > MOST_BYTES:
            raise ServiceError(
                f"the files in the recipe's folder {self._folder} have {num_bytes / 2**20:.0f} MiB together, but "
                f"at most {MOST_BYTES / 2**20:.0f} MiB are sent to workers. Move data out of the folder, or copy the folder "
                "to the worker's machine and name it with --recipe FOLDER."
            )

    def read(self, name: str) -> bytes:
        """Return the content of a listed file. Raises ServiceError if it cannot be read any more."""
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise _unreadable(self._folder / name, error) from error

    def _describe(self, path: Path) -> Mapping[str, Any]:
        if "\\" in str(path):
            raise UsageError(
                f"the recipe's folder {self._folder} contains {str(path)!r}. A file with a backslash in its path cannot be sent "
                "to workers. Rename it, or move it out of the folder."
            )
        file = self._folder / path
        try:
            found = file.stat()
            return {"bytes": found.st_size, "sha256": sha256(file), "executable": _is_executable(found)}
        except OSError as error:
            raise _unreadable(file, error) from error


def count_bytes(listing: Listing) -> int:
    return sum(entry["bytes"] for entry in listing.values())


def differing_files(listing: Listing, folder: Path) -> list[str]:
    """Return the listed files that the folder does not have, or has with another content, or executable only on one
    side."""
    return [name for name, entry in listing.items() if not _is_equal(folder / name, entry)]


def cached_folder(listing: Listing) -> Path:
    """Return the folder of the cache for these files. It may not exist yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    content = {name: [entry["sha256"], entry["executable"]] for name, entry in listing.items()}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return cache / "sparring" / "recipes" / digest


def note_use(folder: Path) -> None:
    """Record that a folder of the cache is used now, so that it is kept."""
    with suppress(OSError):
        os.utime(folder)


def _delete_unused(cache: Path) -> None:
    """Delete the folders that are neither among the KEPT_FOLDERS that were used last, nor used in KEPT_SECONDS. This
    includes what a command that was killed has left."""
    with suppress(OSError):
        used = sorted(((one.stat().st_mtime, one) for one in cache.iterdir() if one.is_dir()), reverse=True)
        for when, folder in used[KEPT_FOLDERS:]:
            if when < time.time() - KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def check_listing(listing: Listing) -> None:
    """Raise DataError for a path that leads out of a folder."""
    for name in listing:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or str(path) != name or name == "." or {"\\", "\0"} & set(name):
            raise DataError(
                f"the run sends a file with the path {name!r}, which is not a path within a folder, so nothing is written. "
                "Connect only to runs that you trust."
            )


def store(listing: Listing, contents: Mapping[str, bytes]) -> Path:
    """Write all listed files into their folder of the cache, and return it. Call `check_listing` first.

    Raises DataError if a content does not have its listed hash: the run's file has changed since it was listed. Raises
    DiskError if the files cannot be written.
    """
    folder = cached_folder(listing)
    try:
        _write(listing, contents, folder)
    except OSError as error:
        raise DiskError(
            f"the recipe's files cannot be stored in {folder.parent}: {error}. Free space, or set XDG_CACHE_HOME to a folder "
            "that this user may write."
        ) from error
    note_use(folder)
    _delete_unused(folder.parent)
    return folder


def _write(listing: Listing, contents: Mapping[str, bytes], folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".staged-"))
    written = staging / "recipe"
    try:
        written.mkdir()
        for name, entry in listing.items():
            if hashlib.sha256(contents[name]).hexdigest() != entry["sha256"]:
                raise DataError(f"{name} has changed in the run's folder while it was sent; start the run again.")
            (written / name).parent.mkdir(parents=True, exist_ok=True)
            (written / name).write_bytes(contents[name])
            if entry["executable"]:
                mode = (written / name).stat().st_mode
                # Executable for everyone who may read it.
                (written / name).chmod(mode | (mode & 0o444) >> 2)
        if folder.exists() and differing_files(listing, folder):
            folder.rename(staging / "replaced")
        try:
            written.rename(folder)
        except OSError:
            # Another command may have written the same files.
            if differing_files(listing, folder):
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _is_equal(path: Path, entry: Mapping[str, Any]) -> bool:
    try:
        found = path.stat()
        is_same_kind = found.st_size == entry["bytes"] and _is_executable(found) == entry["executable"]
        return is_same_kind and sha256(path) == entry["sha256"]
    except OSError:
        return False


def _is_executable(found: os.stat_result) -> bool:
    return bool(found.st_mode & stat.S_IXUSR)


def _unreadable(file: Path, error: OSError) -> ServiceError:
    return ServiceError(
        f"a file of the recipe cannot be read, so it cannot be sent to workers: {file}: {error.strerror or error}. Restore it, "
        "or start the run again."
    )
