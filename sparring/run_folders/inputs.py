"""Record the files that a recipe's code reads through Sparring in this process, and the revisions of its data sets. The run's
manifest lists them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

_read: dict[Path, tuple[tuple[int, int], str]] = {}
"""For each path, the modification time, the size and the sha256 of the file when it was last read."""

_revisions: dict[str, str] = {}
"""For each address of a data set, the commit that was read."""


def note_revision(address: str, revision: str) -> None:
    """Record the commit of a data set that was read."""
    _revisions[address] = revision


def recorded_revisions() -> Mapping[str, str]:
    """Return the commit of each recorded data set, keyed by address."""
    return dict(_revisions)


def note_input(path: Path) -> None:
    """Record the content of a file that is about to be read. A missing file is ignored."""
    path = path.resolve()
    if not path.is_file():
        return
    stat = path.stat()
    version = (stat.st_mtime_ns, stat.st_size)
    # Some environments read the same file for every episode.
    if path not in _read or _read[path][0] != version:
        with path.open("rb") as file:
            _read[path] = (version, hashlib.file_digest(file, "sha256").hexdigest())


def recorded_inputs() -> Mapping[str, str]:
    """Return the sha256 of each recorded file, keyed by path."""
    return {str(path): digest for path, (_, digest) in _read.items()}
