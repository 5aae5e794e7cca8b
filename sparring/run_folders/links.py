"""Links in a run folder. A run may be a stranger's, and reading, copying or exporting it must not reach other files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparring.errors import DataError
from sparring.run_folders.recipe_files import FOLDER, LARGE_BYTES
from sparring.runtime.json_values import parse_json


def refuse_foreign_files(run: Path) -> None:
    """Raise DataError if a run folder contains a link that leads out of it, other than those of `copy_files`, or an entry
    that is neither a file, a folder nor a socket."""
    for path, mode in _list_special(run):
        if not stat.S_ISLNK(mode):
            raise DataError(f"{path} is a pipe or a device, which no run writes; delete it, or specify another run.")
        if leads_outside(path, run):
            raise DataError(
                f"{path} is a link to {_target(path) or os.readlink(path)}, which is outside of the run, so it is not followed. "
                "Delete the link, or replace it by the files. To keep a run on another disk, link its whole folder."
            )


def leads_outside(link: Path, run: Path) -> bool:
    """Return whether a link below a run folder leads out of it and is not one of those that the run made, to a large file
    or a subfolder of the recipe (`linked` in its manifest)."""
    target = _target(link)
    if target is not None and target.is_relative_to(run.resolve()):
        return False
    name = link.relative_to(run)
    entry = _read_linked(run).get(str(name.relative_to(FOLDER))) if name.parts[0] == FOLDER else None
    if target is None or not isinstance(entry, Mapping):
        return not isinstance(entry, Mapping)
    if target.is_file():
        size = target.stat().st_size
        return size < LARGE_BYTES or size != entry.get("bytes")
    return "bytes" in entry or str(target) != entry.get("path")


def _target(link: Path) -> Path | None:
    """Return what a link leads to, or None if there is no end to it or nothing there."""
    try:
        return link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None


def _read_linked(run: Path) -> Mapping[str, Any]:
    try:
        linked = parse_json((run / "manifest.json").read_text("utf-8"))["linked"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return linked if isinstance(linked, Mapping) else {}


def _list_special(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the entries at any depth that are neither files, folders nor sockets, with their mode. Links are not followed."""
    folders = [folder]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:  # deleted in the meantime, or unreadable, which the reader reports
            continue
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path), stat.S_IFLNK
            elif entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif not entry.is_file(follow_symlinks=False) and not stat.S_ISSOCK(mode := os.lstat(entry.path).st_mode):
                yield Path(entry.path), mode
