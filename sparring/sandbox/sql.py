"""SQL for one episode: a SQLite database in memory that a model may query, without access to anything else.

The authorizer, the limits and the progress handler are SQLite's own (sqlite.org/c3ref/set_authorizer.html,
sqlite.org/limits.html, sqlite.org/c3ref/progress_handler.html). The engine runs in this process. It has no access to
files or to the rest of the machine, and its running time is limited. This does not protect against a bug in SQLite
itself.
"""

from __future__ import annotations

import math
import re
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sparring.errors import DataError
from sparring.types import Json

Cell: TypeAlias = str | int | float | bytes | None
Table: TypeAlias = Sequence[Mapping[str, Cell]]
"""The rows of a table. The columns are those of the first row."""

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_FUNCTION}
_WRITING = {
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
}
_REFUSED_FUNCTIONS = frozenset(
    {"load_extension", "random", "randomblob", "fts3_tokenizer", "sqlite_log", "writefile", "edit"}
)
"""Functions that are refused. They include random functions, because the same query must have the same answer."""
_PROGRESS_STEPS = 100
"""The number of instructions of SQLite's virtual machine between two checks of the time limit."""


class SqlError(Exception):
    """Raised for a query that is not allowed, is invalid, or exceeds its time limit. The text is for the model that
    wrote the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlLimits:
    """The limits of one query."""

    seconds: float = 1.0
    rows: int = 200
    """The maximum number of rows in an answer. A longer answer is cut, which `SqlDatabase.query` reports."""
    output_kib: int = 64
    """The maximum size of the text and blobs in an answer."""
    value_kib: int = 16
    """The maximum size of a string or blob, even during a query. A function of two long strings cannot be interrupted,
    so this limits how late a query may end."""
    query_kib: int = 16
    database_mib: int = 16


class SqlDatabase:
    """Tables in memory, filled once and then read-only unless `writable`.

        database = SqlDatabase({"parts": [{"id": 1, "name": "bolt"}]})
        database.query("SELECT name FROM parts WHERE id = ?", [1])  # [{"name": "bolt"}]

    The schema is SQL text, or a mapping from table names to rows. Methods may be called from any thread, one at a time.
    """

    def __init__(
        self, schema: str | Mapping[str, Table], limits: SqlLimits | None = None, *, writable: bool = False
    ) -> None:
        """Create the database. Raises DataError if SQLite rejects the schema or a row."""
        self.limits = limits or SqlLimits()
        self._lock = threading.Lock()
        self._deadline = math.inf
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            if isinstance(schema, str):
                self._connection.executescript(schema)
            else:
                for name, rows in schema.items():
                    self._fill(name, rows)
        except (sqlite3.Error, sqlite3.Warning) as error:
            self._connection.close()
            raise DataError(f"The database cannot be created: {error}. Correct the schema or the rows.") from error
        self._shut_in(writable)

    def query(self, sql: str, parameters: Sequence[Cell] | Mapping[str, Cell] = ()) -> list[dict[str, Json]]:
        """Return rows as mappings, keyed by column name. The last row is `{"truncated": ...}` if there were more rows
        than the limits allow.

        Only one statement is allowed. Raises SqlError, whose text states what the model should change.
        """
        rows, is_whole = self.rows(sql, parameters)
        if not is_whole:
            rows.append({"truncated": f"more rows than can be shown; {len(rows)} are above, narrow the query"})
        return rows

    def rows(
        self, sql: str, parameters: Sequence[Cell] | Mapping[str, Cell] = ()
    ) -> tuple[list[dict[str, Json]], bool]:
        """Return rows as mappings, keyed by column name, and whether these are all rows. Raises SqlError."""
        with self._lock:
            self._deadline = time.monotonic() + self.limits.seconds
            try:
                cursor = self._connection.execute(sql, parameters)
                return self._fetched(cursor)
            except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError, UnicodeError, MemoryError) as error:
                raise SqlError(self._describe(error)) from error
            finally:
                self._deadline = math.inf

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _fill(self, name: str, rows: Table) -> None:
        if not rows:
            raise DataError(f"Table {name!r} has no rows, so its columns are unknown; give the schema as SQL text.")
        columns = list(rows[0])
        odd = next((number for number, row in enumerate(rows) if list(row) != columns), None)
        if odd is not None:
            raise DataError(
                f"Table {name!r}, row {odd} has the columns {list(rows[odd])}, but the first row has {columns}; make "
                "them equal."
            )
        listed = ", ".join(map(_quoted, columns))
        self._connection.execute(f"CREATE TABLE {_quoted(name)} ({listed})")
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(
            f"INSERT INTO {_quoted(name)} VALUES ({marks})", [tuple(row.values()) for row in rows]
        )

    def _shut_in(self, writable: bool) -> None:
        connection, limits = self._connection, self.limits
        (page,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {limits.database_mib * 2**20 // page}")
        for name, value in (
            (sqlite3.SQLITE_LIMIT_LENGTH, limits.value_kib * 1024),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, limits.query_kib * 1024),
            (sqlite3.SQLITE_LIMIT_COLUMN, 256),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
            (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
            (sqlite3.SQLITE_LIMIT_VDBE_OP, 250_000),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 256),
            (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 10),
            (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
        ):
            connection.setlimit(name, value)
        allowed = _READING | _WRITING if writable else _READING

        def authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
            if action not in allowed or (action == sqlite3.SQLITE_FUNCTION and second in _REFUSED_FUNCTIONS):
                return sqlite3.SQLITE_DENY
            if action in _WRITING and str(first).startswith("sqlite_"):
                return sqlite3.SQLITE_DENY
            return sqlite3.SQLITE_OK

        for name in ("printf", "format"):
            connection.create_function(name, -1, _formatted, deterministic=True)
        connection.set_authorizer(authorize)
        connection.set_progress_handler(lambda: time.monotonic() > self._deadline, _PROGRESS_STEPS)

    def _fetched(self, cursor: sqlite3.Cursor) -> tuple[list[dict[str, Json]], bool]:
        names = [column[0] for column in cursor.description or ()]
        if len(set(names)) != len(names):
            doubled = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two columns of the answer are called {doubled!r}; name them with AS")
        rows: list[dict[str, Json]] = []
        left = self.limits.output_kib * 1024
        for row in cursor:
            left -= sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)
            if len(rows) == self.limits.rows or left < 0:
                cursor.close()
                return rows, False
            rows.append(dict(zip(names, map(_as_json, row), strict=True)))
        return rows, True

    def _describe(self, error: BaseException) -> str:
        text = str(error)
        if "interrupted" in text:
            return f"the query did not end within {self.limits.seconds:g} s; make it smaller"
        if "not authorized" in text or "prohibited" in text:
            return f"{text}: this database can be queried but not changed, and has no access to files"
        if "user-defined function" in text:
            return "printf takes a format such as '%.2f' whose values fit it, with widths below 1000"
        if "too big" in text or "too large" in text or isinstance(error, MemoryError):
            return f"{text}: a value may have {self.limits.value_kib} KiB, a query {self.limits.query_kib} KiB"
        return text


def _formatted(pattern: str, *values: Cell) -> str:
    """Format values. This function replaces SQLite's own, which takes seconds for a width of millions and cannot be
    interrupted."""
    if re.search(r"\*|\d{4}", pattern):
        raise ValueError("a width is too large")
    return pattern % values


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _as_json(cell: Cell) -> Json:
    """Return a cell as JSON. Blobs are in hexadecimal, and infinities, which JSON lacks, are text."""
    if isinstance(cell, bytes):
        return cell.hex()
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    return cell
