"""Reads dataset files into tasks: parquet, JSON lines, a JSON array, or CSV, with one task per row.

The prompt is the column `prompt`, or else the first column. A string becomes one user message; a list of messages is
used unchanged. The task's id is the column `id`, or else the row number. Every other column is kept in `Task.fields`,
which the agent never sees. Error messages count rows from 1. They also give the line number if it differs from the row
number.
"""

from __future__ import annotations

import csv
import difflib
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from sparring.data.calls import check_calls
from sparring.errors import DataError, ServiceError
from sparring.runtime.json_values import MAX_DEPTH, depth, parse_json
from sparring.types import Message, Task

Row: TypeAlias = Mapping[str, Any]

NO_COLUMNS: Mapping[str, str] = MappingProxyType({})
MOST_UNPACKED, MOST_EXPANSION = 2**30, 100
"""The values of a parquet file may have this many bytes, or this many times the size of the file if that is more."""
_ROWS_AT_ONCE = 256
ROLES = ("system", "user", "assistant", "tool")


def read_tasks(path: Path, columns: Mapping[str, str] = NO_COLUMNS) -> list[Task]:
    """Return the tasks of a dataset file, in the order of the file.

    `columns` maps names to the columns of the file that get these names, such as `{"prompt": "question"}`.

    Raises DataError when the file is missing, unreadable or empty, or when a row is not a valid task. The error
    identifies the file and the invalid row. Raises ServiceError for a parquet file when pyarrow is not installed.
    """
    with _readable(path):
        tasks = list(tasks_of(path, _rows(path), columns))
    if not tasks:
        raise DataError(f"{path} has no rows, so there is nothing to run; give a file with one task per row.")
    return tasks


def read_rows(path: Path) -> list[tuple[str, Row]]:
    """Return the rows of a file in any of these formats, in file order. Each row comes with its position for error
    messages.

    Raises the same errors as `read_tasks`.
    """
    with _readable(path):
        return list(_rows(path))


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    readers = {".parquet": _parquet, ".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json_array, ".csv": _csv}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path}: files with {path.suffix or 'no suffix'!r} cannot be read; give a .parquet, .jsonl, .json or .csv "
            "file."
        )
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}; give the path of a dataset file, absolute or relative to the recipe.")
    return reader(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise DataError when the file cannot be read or is not text."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}; check the path and the permissions.") from error


def each_key_once(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Return an `object_pairs_hook` for `json.loads` that raises DataError if an object has the same key twice."""

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            names = [name for name, _ in pairs]
            repeated = next(name for name in names if names.count(name) > 1)
            raise DataError(f"{where}: an object has the key {repeated!r} more than once; keep one of them.")
        return content

    return read


def tasks_of(
    source: Path | str, rows: Iterable[tuple[str, Row]], columns: Mapping[str, str] = NO_COLUMNS, *, id_prefix: str = ""
) -> Iterator[Task]:
    """Yield one task per row. Each row comes with its position for error messages.

    `columns` is as in `read_tasks`; `id_prefix` is put before the number of a row that has no id. Raises DataError.
    """
    rows_by_id: dict[str, str] = {}
    for number, (place, given) in enumerate(rows, start=1):
        where = f"{source}, {place}"
        row = _rename(given, columns, where)
        _check_text(row, where)
        task_id = row.get("id", f"{id_prefix}{number}")
        if not isinstance(task_id, str) or not task_id:
            raise DataError(
                f"{where}: id = {task_id!r} is not a string; give every task its own string as `id`, or leave `id` out."
            )
        first = rows_by_id.setdefault(task_id, place)
        if first != place:
            raise DataError(f"{where}: id = {task_id!r} is already the id of {first}; give every task its own id.")
        if not row:
            raise DataError(f"{where}: the row is empty; give it a `prompt`.")
        column = "prompt" if "prompt" in row else next((name for name in row if name != "id"), "id")
        fields = {name: value for name, value in row.items() if name not in ("id", column)}
        yield Task(id=task_id, messages=_messages(row[column], f"{where}, column {column!r}"), fields=fields)


def _rename(row: Row, columns: Mapping[str, str], where: str) -> Row:
    """Return a row with other names of its columns. Raises DataError if it lacks a column, or already has the name."""
    if not columns:
        return row
    for name, column in columns.items():
        if column not in row:
            near = difflib.get_close_matches(column, [str(one) for one in row], n=3) or list(row)
            raise DataError(
                f"{where}: data.columns.{name} names the column {column!r}, which the row does not have; "
                f"name one of its columns: {', '.join(map(str, near))}."
            )
        if name in row and name != column and name not in columns.values():
            raise DataError(
                f"{where}: data.columns.{name} renames {column!r} to {name!r}, but there is already a column {name!r}; "
                "give that column another name in data.columns, too."
            )
    kept = {name: value for name, value in row.items() if name not in columns.values()}
    return {**kept, **{name: row[column] for name, column in columns.items()}}


def _check_text(row: Row, where: str) -> None:
    """Raise DataError for half a surrogate pair: JSON allows it, but tokenizers, ledgers and logs cannot contain it. Also
    raise it for deep nesting, which code that follows values would not survive."""
    if depth(row) > MAX_DEPTH:
        raise DataError(f"{where}: the row is nested deeper than {MAX_DEPTH} levels; flatten it, or remove it.")
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DataError(
            f"{where}: {half!r} is half of a surrogate pair; write the whole character, or remove it."
        ) from error


def _messages(prompt: Any, where: str) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise DataError(f"{where}: the prompt is blank; write one, or remove the row.")
        return ({"role": "user", "content": prompt},)
    if not isinstance(prompt, list) or not prompt:
        raise DataError(f"{where}: {_short(prompt)} is not a prompt; give a string, or a list of at least one message.")
    for index, message in enumerate(prompt, start=1):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise DataError(
                f"{where}: message {index} is {_short(message)}; give an object whose `role` is one of {', '.join(ROLES)}."
            )
        check_calls(message, f"{where}, message {index}")
        has_text = isinstance(message.get("content"), str)
        if not has_text and not message.get("tool_calls"):
            raise DataError(f"{where}: message {index} has no text; give it a string as `content`.")
    # Parquet sets the keys that a message lacks to None; a template must not see those keys.
    return tuple({key: value for key, value in message.items() if value is not None} for message in prompt)


def _json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    # splitlines() would also split at U+2028 and similar characters, which JSON strings may contain.
    lines = path.read_text("utf-8-sig").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            value = parse_json(line, object_pairs_hook=each_key_once(f"{path}, {place}"))
        except ValueError as error:
            if number == len(lines):
                raise DataError(
                    f"{path}, {place}: the last line is incomplete ({error}), as if writing it was interrupted; "
                    "write the file again, or remove that line."
                ) from error
            raise DataError(f"{path}, {place}: not JSON ({error}); give one JSON object per line.") from error
        yield place, _object(value, path, place)


def _json_array(path: Path) -> Iterator[tuple[str, Row]]:
    try:
        values = parse_json(path.read_text("utf-8-sig"), object_pairs_hook=each_key_once(str(path)))
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); give an array of objects, or name the file .jsonl.") from error
    if not isinstance(values, list):
        raise DataError(f"{path} contains {_short(values)}, not an array; give an array with one object per task.")
    for number, value in enumerate(values, start=1):
        yield f"row {number}", _object(value, path, f"row {number}")


def _csv(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            names = reader.fieldnames or []
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise DataError(
                    f"{path}: the header contains {repeated} more than once; give every column a different name."
                )
            for number, row in enumerate(reader, start=1):
                place = f"row {number} (line {reader.line_num})"
                if None in row or None in row.values():
                    raise DataError(
                        f"{path}, {place}: the row does not have the {len(names)} cells of the header; "
                        "quote cells that contain commas."
                    )
                yield place, row
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num + 1}: {error}; check the quotes from that line on."
            ) from error


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    try:
        # Only parquet needs pyarrow, an optional dependency.
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ServiceError(
            f"{path} needs pyarrow, which is not installed; install it with `pip install 'sparring[data]'`, "
            "or convert the file to .jsonl."
        ) from error
    limit = max(MOST_UNPACKED, MOST_EXPANSION * path.stat().st_size)
    number = num_bytes = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
                num_bytes += batch.nbytes
                if num_bytes > limit:
                    raise DataError(
                        f"{path} has more than {limit / 2**30:.3g} GiB of values, {MOST_EXPANSION} times its size, as a file "
                        "that is made to fill the memory; split it into several files if it is not."
                    )
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except (ValueError, OSError) as error:
        # These are the base classes of pyarrow's errors.
        raise DataError(f"{path} cannot be read as parquet ({error}); write the file again.") from error


def _object(value: Any, path: Path, place: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{path}, {place}: {_short(value)} is not a JSON object; every row must be one.")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
