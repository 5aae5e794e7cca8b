"""Notice that the folder of a run is gone, for example because its shared file system was unmounted."""

from __future__ import annotations

from pathlib import Path
from typing import final

from sparring.errors import ServiceError


@final
class Presence:
    """Whether the folder of a run in progress is still the one that it started in.

    Files that are open stay writable when their folder is moved or deleted, so the run might not notice it otherwise.
    """

    def __init__(self, folder: Path) -> None:
        """Remember an existing folder. Raises OSError."""
        self._folder = folder.absolute()
        self._identity = _identify(self._folder)

    def require(self) -> None:
        """Raise ServiceError unless the folder is there."""
        try:
            if _identify(self._folder) == self._identity:
                return
            problem = "another folder is in its place"
        except OSError as error:
            problem = str(error)
        raise ServiceError(
            f"the run's folder {self._folder} is gone ({problem}). It was moved or deleted, or its file system is not mounted. "
            "Bring it back, and resume the run from its last checkpoint. If it is lost for good, `sparring runs fetch` "
            "restores its copy (run.copy_to)."
        )


def _identify(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino
