"""Logs: readable warnings on standard error, and records in the run's `log.jsonl` for programs.

The logger of each module masks secrets itself, so that no handler can write them, not even a user's own handler.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TextIO, cast

from sparring.runtime.private_files import open_private
from sparring.runtime.redaction import mask_secrets
from sparring.runtime.terminal import visible

LOG = "log.jsonl"
"""File in a run folder with the log of the training, one `{"time", "level", "logger", "message"}` per line."""
ROOT: Final = "sparring"


class _Masking(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = mask_secrets(record.getMessage()), None
        if record.exc_info:
            record.exc_text = mask_secrets("".join(traceback.format_exception(*record.exc_info)).rstrip())
            record.exc_info = None
        return True


_MASKING = _Masking()


def get_logger(name: str) -> logging.Logger:
    """Return a logger that masks secrets in messages and tracebacks."""
    logger = logging.getLogger(name)
    # A filter of the logger, unlike a filter of a handler, applies to all present and future handlers.
    logger.addFilter(_MASKING)
    return logger


class _JsonLines(logging.Handler):
    """A handler that reopens the file for each record, so that no record is lost when the process dies."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        entry = {
            "time": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_text:
            entry["traceback"] = record.exc_text
        # If the disk is full, the line is still on standard error.
        with suppress(OSError), open_private(self._path, "a") as file:
            file.write(json.dumps(entry) + "\n")


class _Lines(logging.Handler):
    """A handler that writes to the current `sys.stderr`, which progress bars replace."""

    def emit(self, record: logging.LogRecord) -> None:
        print(visible(f"{record.levelname.lower()}: {self.format(record)}"), file=sys.stderr)  # noqa: T201


class _RootElsewhere(logging.Handler):
    """A handler that passes records to the handlers of the root logger, except those that write to the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        for handler in logging.getLogger().handlers:
            if record.levelno >= handler.level and not _writes_to_terminal(handler):
                handler.handle(record)


def _writes_to_terminal(handler: logging.Handler) -> bool:
    console = getattr(handler, "console", None)  # of a handler of rich
    stream = getattr(handler, "stream", None) or getattr(console, "file", None)
    if stream in (sys.stdout, sys.stderr):
        return True
    try:
        return stream is not None and stream.fileno() in (1, 2)
    except (AttributeError, OSError, ValueError):
        return False


@contextmanager
def log_to_folder(folder: Path) -> Iterator[None]:
    """Also write Sparring's log to the folder's `log.jsonl`. It contains warnings and errors, or more if the user sets
    a lower level."""
    handler, logger = _JsonLines(folder / LOG), logging.getLogger(ROOT)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def show_on_stderr() -> None:
    """Print warnings and errors on standard error, one line each, for the command line. Calling it again changes nothing.

    Handlers of the root logger that write to the terminal do not receive these lines. Otherwise, the lines would appear
    twice.
    """
    logger = logging.getLogger(ROOT)
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        handler = _Lines(logging.WARNING)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.addHandler(_RootElsewhere())
        logger.propagate = False


def ignore_write_errors(stream: TextIO | None) -> TextIO:
    """Wrap standard error so that write errors are ignored.

    Such errors occur if the terminal was closed, if the disk with a log file is full, or if `| head` has ended. The
    text is lost, and the program continues.
    """
    return cast(TextIO, _LossyStream(stream))


class _LossyStream:
    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (open until the process ends)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
