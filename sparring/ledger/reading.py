"""A ledger opened to read: no file of it changes, whether a run writes it or died in the middle of that."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from sparring.errors import ServiceError
from sparring.ledger.rows import FORMAT, register_functions, unusable, upgrade


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A ledger as of one moment; one of an older format as this version would bring it up to date, in a copy.

    Raises DataError for a file that is no ledger or is damaged, ServiceError when the disk, permissions or another process
    keep it from being read.
    """
    with ExitStack() as held:
        try:
            db = _connected(path, held)
            if db.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
                # "" is a temporary database, which SQLite keeps on the disk when it is large.
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
                f"{path} cannot be read: {error}. Check the disk and its permissions, and do it again."
            ) from error


def _connected(path: Path, held: ExitStack) -> sqlite3.Connection:
    """A connection that writes neither the file nor what SQLite keeps beside it."""
    log, index = (path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm"))
    if log.exists() and index.exists():
        # Where no process has it open, SQLite makes an index of its own in memory.
        db = _open(path, "mode=ro&readonly_shm=1")
        try:
            db.execute("PRAGMA user_version")
            return held.enter_context(closing(db))
        except sqlite3.OperationalError:
            db.close()
            if log.exists() and index.exists():
                raise
            # The process that wrote it has closed it meanwhile.
    if log.exists() and log.stat().st_size > 0:
        # SQLite would write an index: it may do that beside a copy.
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="sparring-ledger-")))
        for file in (path, log):
            shutil.copyfile(file, folder / file.name)
        return held.enter_context(closing(_open(folder / path.name, "mode=ro")))
    return held.enter_context(closing(_open(path, "mode=ro&immutable=1")))


def _open(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?{options}", uri=True, isolation_level=None)
