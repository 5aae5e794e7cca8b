"""Notice that the folder of a run is gone, for example because its shared file system was unmounted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from sparring.errors import DataError, ServiceError, UsageError
from sparring.run_folders.run_folder import RunFolder


@final
class Presence:
    """Whether the folder of a run in progress is still the one that it started in.

    Files that are open stay writable when their folder is moved or deleted, so the run might not notice it otherwise.
    """

    def __init__(self, folder: Path) -> None:
        """Remember an existing folder. Raises OSError."""
        self._folder = folder.absolute()
        self._identity = _identify(self._folder)

    def require(self, then: str = "resume the run from its last checkpoint") -> None:
        """Raise ServiceError unless the folder is there. `then` is what to do when it is back."""
        try:
            if _identify(self._folder) == self._identity:
                return
            problem = "another folder is in its place"
        except OSError as error:
            problem = str(error)
        raise ServiceError(
            f"the run's folder {self._folder} is gone ({problem}). It was moved or deleted, or its file system is not mounted. "
            f"Bring it back, and {then}. If it is lost for good, `sparring runs fetch` "
            "restores its copy (run.copy_to)."
        )


@contextmanager
def explaining_loss(folder: RunFolder) -> Iterator[None]:
    """Replace an error of the block if its cause is that the run's folder is gone (ServiceError), or that files of its
    recipe are missing or cut (DataError)."""
    presence = Presence(folder.path)
    try:
        yield
    except Exception as error:
        presence.require(then="run the command again")
        changed = folder.changed_files() if isinstance(error, UsageError | DataError) else []
        if changed:
            raise DataError(
                f"{folder.path} is incomplete or was changed: files of its recipe ({len(changed)}) are missing or differ from "
                f"its manifest, such as {changed[0]}. Copy the run again, or restore these files. The error was: {error}"
            ) from error
        raise


def _identify(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino
