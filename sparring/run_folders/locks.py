"""Locks of run folders. The operating system releases a lock when its process ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparring.errors import SparringError
from sparring.runtime.private_files import open_private

LOCK = "lock"
"""The lock of the process that trains a run, or that changes its files."""
CONTROL_LOCK = "control.lock"
"""The lock of the process that trains a control."""


@contextmanager
def hold_lock(folder: Path, refusal: SparringError, *, name: str = LOCK) -> Iterator[None]:
    """Lock a folder for the duration of a `with` block, or a part of its work with the lock `name`. The operating system
    releases the lock when the process ends. Raises `refusal` if it is already locked."""
    with open_private(folder / name, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise refusal from error
        yield
