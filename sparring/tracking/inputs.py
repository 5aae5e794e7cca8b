"""Which files the code of a recipe read through Sparring in this process, for the manifest of its run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

_read: dict[Path, tuple[tuple[int, int], str]] = {}
"""By path the time and size of the file when it was read last, and its sha256 then."""


def note_input(path: Path) -> None:
    """Remember what the file holds, which is about to be read. One that is not there is not remembered."""
    path = path.resolve()
    if not path.is_file():
        return
    found = path.stat()
    version = (found.st_mtime_ns, found.st_size)
    # Some read the same file for every episode.
    if path not in _read or _read[path][0] != version:
        with path.open("rb") as file:
            _read[path] = (version, hashlib.file_digest(file, "sha256").hexdigest())


def inputs() -> Mapping[str, str]:
    """The sha256 of each file by its path."""
    return {str(path): digest for path, (_, digest) in _read.items()}
