"""The files that the code of a recipe opens for reading during a check: at import, when it loads tasks, in episodes and
in rewards."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, final

import sparring

_EVENTS = frozenset({"open", "sqlite3.connect"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    path: Path
    is_relative: bool
    """True if the code opened the file by a path relative to the working folder."""
    line: str
    """The line of the recipe's code that opened the file, as `file:line`."""


@final
class OpenedFiles:
    """Records opened files with an audit hook of the interpreter. The hook cannot be removed, so use a separate
    process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._seen: dict[OpenedFile, None] = {}
        paths = sysconfig.get_paths()
        # A virtual environment, or Sparring's own source, may be in the recipe's folder.
        libraries = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
        self._foreign = (*libraries, str(Path(sparring.__file__).parent))
        sys.addaudithook(self._heard)

    def seen(self) -> list[OpenedFile]:
        return list(self._seen)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
        named = os.fsdecode(arguments[0])
        if flags & (os.O_WRONLY | os.O_CREAT) or named in (":memory:", "") or named.endswith(".pyc"):
            return
        line = self._line(sys._getframe())
        if line is not None:
            path = Path(os.path.abspath(named))
            self._seen[OpenedFile(path=path, is_relative=not os.path.isabs(named), line=line)] = None

    def _line(self, frame: FrameType | None) -> str | None:
        """Return the innermost line of the recipe's own code on the stack, or None if there is none."""
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(f"{self.folder}{os.sep}") and not file.startswith(self._foreign):
                return f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return None
