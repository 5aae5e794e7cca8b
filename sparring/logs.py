"""Logs: one line that a person would act on, for people on standard error and for programs in the run's `log.jsonl`.

Every module's logger masks secrets itself, so that they are in no log whoever handles the records: the command line, a
notebook, a user's own handlers.
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

from sparring.redaction import masked

LOG = "log.jsonl"
"""In a run folder: what was logged while it trained, one `{"time", "level", "logger", "message"}` a line."""
ROOT: Final = "sparring"


class _Masking(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = masked(record.getMessage()), None
        if record.exc_info:
            record.exc_text = masked("".join(traceback.format_exception(*record.exc_info)).rstrip())
            record.exc_info = None
        return True


_MASKING = _Masking()


def get_logger(name: str) -> logging.Logger:
    """The logger of a module, which masks secrets in messages and tracebacks."""
    logger = logging.getLogger(name)
    # Of a logger, not of a handler: it then holds for every handler that there will be.
    logger.addFilter(_MASKING)
    return logger


class _JsonLines(logging.Handler):
    """Opens the file anew for each record: what is written is on its way to the disk, whatever happens to the process."""

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
        # On a full disk, standard error has the line all the same.
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


class _Lines(logging.Handler):
    """Writes to what standard error is at the time: progress bars stand in for it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{record.levelname.lower()}: {self.format(record)}", file=sys.stderr)  # noqa: T201


class _RootElsewhere(logging.Handler):
    """Hands records to those handlers of the root logger that do not write to the terminal: a file, a service."""

    def emit(self, record: logging.LogRecord) -> None:
        for handler in logging.getLogger().handlers:
            if record.levelno >= handler.level and not _writes_to_terminal(handler):
                handler.handle(record)


def _writes_to_terminal(handler: logging.Handler) -> bool:
    console = getattr(handler, "console", None)  # rich's
    stream = getattr(handler, "stream", None) or getattr(console, "file", None)
    if stream in (sys.stdout, sys.stderr):
        return True
    try:
        return stream is not None and stream.fileno() in (1, 2)
    except (AttributeError, OSError, ValueError):
        return False


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Whatever Sparring logs is also kept in the folder's `log.jsonl`: warnings and errors, unless a user asks for more."""
    handler, logger = _JsonLines(folder / LOG), logging.getLogger(ROOT)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def show_on_stderr() -> None:
    """For the command line: warnings and errors, a line each. Calling it again changes nothing.

    A library may give the root logger a handler that writes to the terminal, too: it does not get our lines a second time.
    """
    logger = logging.getLogger(ROOT)
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        handler = _Lines(logging.WARNING)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.addHandler(_RootElsewhere())
        logger.propagate = False


def unfailing(stream: TextIO | None) -> TextIO:
    """Standard error of who goes on without it: the terminal was closed, the disk of a log is full, `| head` has seen enough.
    What is said is lost then, and nothing else."""
    return cast(TextIO, _Unfailing(stream))


class _Unfailing:
    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (as long as the process)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
