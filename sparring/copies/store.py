"""Read and write objects at any URL that fsspec supports. Each operation has a deadline.

fsspec is imported only here, and only when a run has a copy.
"""

from __future__ import annotations

import importlib
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, final

from sparring.errors import ServiceError
from sparring.runtime.private_files import create_folder, open_private

T = TypeVar("T")

OPERATION_SECONDS = 60.0
"""The time limit of one operation. An object has at most a few megabytes."""
PART = r"\.[0-9a-f]{8}\.part"
"""What the name of a file has at its end while the file is written."""
_LOCAL = ("file", "local")
"""The protocols for file systems of this machine."""
_PACKAGES = {"s3": "sparring[s3]", "s3a": "sparring[s3]"}
"""What to install for a protocol; the error of fsspec names the library of other protocols."""


class StoreError(ServiceError):
    """An operation on a store failed or took too long."""


@final
class Store:
    """The objects below a URL, by name. Names contain slashes. All methods raise StoreError."""

    def __init__(self, url: str, *, operation_seconds: float = OPERATION_SECONDS) -> None:
        """Raises ServiceError if fsspec, or the library for this protocol, is not installed."""
        self.url = url.rstrip("/")
        self._seconds = operation_seconds
        self._files, self._root = _open(self.url)

    def read(self, name: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist."""
        return self._call(f"{name} cannot be read", lambda: self._files.cat_file(self._path(name)), missing=None)

    def write(self, name: str, content: bytes) -> None:
        """Write or replace an object. Readers see either the old or the new content, never a part of it."""
        self._call(f"{name} cannot be written", lambda: self._replace(self._path(name), content))

    def delete(self, name: str) -> None:
        """Delete an object. An object that does not exist is not an error."""
        self._call(f"{name} cannot be deleted", lambda: self._files.rm_file(self._path(name)), missing=None)

    def list(self, folder: str = "") -> list[str]:
        """Return the sorted names of all objects below a folder, at any depth."""
        start = self._path(folder) if folder else self._root
        found = self._call(f"{folder or 'the folder'} cannot be listed", lambda: self._find(start), missing=[])
        return sorted(path.removeprefix(f"{self._root}/") for path in found)

    def probe(self) -> None:
        """Write, read and delete an object, to test that a run can be copied here."""
        name, content = f".probe-{uuid.uuid4().hex}", b"sparring"
        self.write(name, content)
        if self.read(name) != content:
            raise StoreError(f"{self.url}/{name} does not have the content that was just written; use another store.")
        self.delete(name)

    def _replace(self, path: str, content: bytes) -> None:
        if _read_protocol(self.url) in _LOCAL:
            _replace_file(Path(path), content)
        else:  # object stores show an object when all of it is there
            self._files.pipe_file(path, content)

    def _find(self, start: str) -> list[str]:
        self._files.invalidate_cache()
        return self._files.find(start)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _call(self, problem: str, operation: Callable[[], T], **missing: T) -> T:
        """Return the result of an operation. If there is no such file, return the value of `missing`, if there is one."""
        result: Future[T] = Future()
        # An operation that never returns, such as one on a network drive, keeps a thread of its own.
        threading.Thread(target=_finish, args=(result, operation), name="sparring-store", daemon=True).start()
        try:
            return result.result(self._seconds)
        except FileNotFoundError as error:
            if missing:
                return missing["missing"]
            raise StoreError(f"{self.url}/{problem}: {_describe(error)}.") from error
        except TimeoutError as error:
            raise StoreError(f"{self.url}/{problem}: no answer within {self._seconds:.3g} s.") from error
        except Exception as error:
            raise StoreError(f"{self.url}/{problem}: {_describe(error)}.") from error


def _open(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path of the URL in it."""
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError as error:
        raise ServiceError(
            f"copies to {url} need fsspec, which is not installed. Install it with `pip install 'sparring[storage]'`, or "
            "remove run.copy_to."
        ) from error
    protocol = _read_protocol(url)
    try:
        files, root = core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        what = f"Install it with `pip install '{package}'`" if package else f"Install it ({error})"
        raise ServiceError(
            f"copies to {url} need the library for {protocol}://, which is not installed. {what}, or change run.copy_to."
        ) from error
    except Exception as error:
        raise ServiceError(f"{url} cannot be opened: {_describe(error)}. Correct run.copy_to.") from error
    return files, str(root).rstrip("/")


def _read_protocol(url: str) -> str:
    return url.partition(":")[0]


def _replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers see either the old or the new content, even after a crash."""
    create_folder(path.parent, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with open_private(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _finish(result: Future[T], operation: Callable[[], T]) -> None:
    with suppress(BaseException):
        try:
            value = operation()
        except BaseException as error:
            result.set_exception(error)
            raise
        result.set_result(value)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": .")
