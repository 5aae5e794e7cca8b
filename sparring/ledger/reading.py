"""Opens a ledger for reading without changing any file, even while a run writes to it or after a crash."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from sparring.errors import ServiceError
from sparring.ledger.rows import (
    FORMAT,
    create_database,
    published_in,
    register_functions,
    select_lineage,
    unusable,
    upgrade,
)

_PAUSES = (0.0, 0.01, 0.05, 0.2)
"""Seconds to wait before each new attempt to open a file that another process is opening or closing."""


@contextmanager
def open_ledger(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a consistent snapshot of a ledger. If the ledger has an older format, a copy of it is upgraded.

    Raises DataError for a file that is damaged or not a ledger. Raises ServiceError if the disk, permissions or another
    process prevent reading the file.
    """
    with ExitStack() as held:
        try:
            db = _connect_with_retries(path, held)
            if db.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
                # "" is a temporary database, which SQLite keeps on disk when it is large.
                copy = held.enter_context(closing(sqlite3.connect("", isolation_level=None)))
                db.backup(copy)
                upgrade(copy, path)
                db = copy
            register_functions(db)
            db.execute("BEGIN")
            yield db
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise unusable(path, error) from error
        except OSError as error:
            raise ServiceError(
                f"{path} cannot be read: {error}. Check the disk and the permissions, and try again."
            ) from error


def back_up(path: Path, target: Path, *, is_ledger: bool = True) -> dict[int, str]:
    """Write a consistent snapshot of a SQLite file that other connections may be writing. They do not wait.

    For a ledger, return the names of the checkpoints in its lineage, keyed by step. Raises the errors of `open_ledger`.
    """
    create_database(target)
    try:
        with closing(_open(path, "mode=ro")) as db, closing(sqlite3.connect(target)) as copy:
            db.backup(copy)
            if is_ledger and copy.execute("PRAGMA user_version").fetchone()[0] == FORMAT:
                return published_in(select_lineage(copy))
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    return {}


def _connect_with_retries(path: Path, held: ExitStack) -> sqlite3.Connection:
    """Return a connection that writes neither the file nor the files that SQLite keeps next to it."""
    for pause in _PAUSES:
        with suppress(sqlite3.OperationalError, FileNotFoundError, _Changed):
            return _connect(path, held)
        # A process may have opened or closed the file at that moment.
        time.sleep(pause)
    return _connect(path, held)


def _connect(path: Path, held: ExitStack) -> sqlite3.Connection:
    log, index = (path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm"))
    if log.exists() and index.exists():
        # If no process has the file open, SQLite builds its own index in memory.
        db = held.enter_context(closing(_open(path, "mode=ro&readonly_shm=1")))
    elif log.exists() and log.stat().st_size > 0:
        # SQLite would write an index file here, so it gets a copy in a temporary folder.
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="sparring-ledger-")))
        before = [(file.stat().st_size, file.stat().st_mtime_ns) for file in (path, log)]
        for file in (path, log):
            shutil.copyfile(file, folder / file.name)
        if before != [(file.stat().st_size, file.stat().st_mtime_ns) for file in (path, log)]:
            raise _Changed(f"{path} changed while it was copied")
        db = held.enter_context(closing(_open(folder / path.name, "mode=ro")))
    else:
        db = held.enter_context(closing(_open(path, "mode=ro&immutable=1")))
    db.execute("PRAGMA user_version")
    return db


class _Changed(OSError):
    pass


def _open(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?{options}", uri=True, isolation_level=None)
