"""The audit log: who requested what from a server, and when. It contains neither keys nor content."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import final

from sparring.errors import UsageError
from sparring.runtime.logs import get_logger
from sparring.runtime.private_files import open_private
from sparring.types import Json

_logger = get_logger(__name__)


@final
class AuditLog:
    """A file with one JSON object for each request. It is opened for each line, so it may be moved at any time."""

    def __init__(self, path: Path) -> None:
        """Create the file with mode 0600, unless it exists. Raises UsageError if it cannot be written."""
        self._path, self._has_failed = path, False
        try:
            open_private(path, "a").close()
        except OSError as error:
            raise UsageError(f"The audit log {path} cannot be written: {error}. Choose another file.") from error

    def write(self, **entry: Json) -> None:
        """Append a line. If this fails, for example because the disk is full, the server continues and logs an error."""
        try:
            with open_private(self._path, "a") as file:
                file.write(json.dumps(entry) + "\n")
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                _logger.error("The audit log %s misses requests: %s", self._path, error)
            self._has_failed = True


def describe_path(path: str) -> str:
    """Return a path without what may be a key: what follows `/s/`, and long parts with digits."""
    path = re.sub(r"^/s/[^/]*", "/s/KEY", path)
    return re.sub(r"(?<=/)(?=[^/]*\d)[^/]{12,}", "ID", path)[:200]
