"""Create files and folders that only their owner can read, whatever the umask of the process is.

The process keeps its umask: other files that it writes, such as models in a cache that several users share, stay readable.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

OWNER_ONLY = 0o700
"""A mask for the modes of files. It removes the permissions of other users."""


def open_private(path: Path, mode: str, *, buffering: int = -1) -> IO[Any]:
    """Open a file as `open` does, and text as UTF-8. A new file has mode 0600; that of an existing one stays."""
    return open(path, mode, buffering, None if "b" in mode else "utf-8", opener=_open)


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file. A new file has mode 0600."""
    with open_private(path, "wb" if isinstance(content, bytes) else "w") as file:
        file.write(content)


def create_folder(path: Path, *, parents: bool = False, exist_ok: bool = False) -> None:
    """Create a folder with mode 0700, as `Path.mkdir` does. With `parents`, missing parents get this mode, too."""
    if parents and not path.parent.exists():
        create_folder(path.parent, parents=True, exist_ok=True)
    path.mkdir(OWNER_ONLY, exist_ok=exist_ok)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
