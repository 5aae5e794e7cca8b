"""Finds the user's own code, so that the evidence points to a line that the user can change."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import final

import sparring

_ROOT = Path(sparring.__file__).parent
_PACKAGE = str(_ROOT) + os.sep
_SUITES = str(_ROOT / "environments" / "suites") + os.sep
_CHECKS = str(_ROOT / "checks") + os.sep
_LIBRARIES = tuple({sysconfig.get_paths()[key] + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")})


@final
class OwnCode:
    """The user's own code: the recipe's folder, the modules that the recipe names, and all other code that is neither a
    library nor part of Sparring. The suites that Sparring contains count as the user's code."""

    def __init__(self, folder: Path, modules: Sequence[str]) -> None:
        """Describe the code of a recipe. `modules` are the names of the loaded modules of its environment's class and base
        classes, or of its agent; the first one is the most specific."""
        self.folder = str(folder.resolve()) + os.sep
        self._named = {name for name in modules if not _is_ours(getattr(sys.modules.get(name), "__file__", None) or "")}
        self._package = modules[0].partition(".")[0]
        self._files = {getattr(sys.modules.get(name), "__file__", None) for name in self._named}
        self.owns = cache(self._owns)

    def _owns(self, file: str) -> bool:
        if not file or file.startswith("<") or _is_ours(file):
            return False
        is_library = file.startswith(_LIBRARIES) or "site-packages" in file or "dist-packages" in file
        return file in self._files or file.startswith(self.folder) or not is_library

    def modules(self) -> tuple[ModuleType, ...]:
        """Return the loaded modules of the recipe's folder, of the most specific module's package and of all named modules."""
        found: dict[int, ModuleType] = {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            is_adjacent = name.partition(".")[0] == self._package and not _is_ours(file)
            if isinstance(module, ModuleType) and (name in self._named or is_adjacent or file.startswith(self.folder)):
                found[id(module)] = module
        return tuple(found.values())

    def line_below(self, frame: FrameType | None) -> str | None:
        """Return `file:line` of the innermost line of the user's code on a stack, or None if there is none."""
        while frame is not None and frame.f_code.co_filename.startswith(_CHECKS):
            frame = frame.f_back  # skip the frames of the observer
        while frame is not None and not frame.f_code.co_filename.startswith(_CHECKS):
            if self.owns(frame.f_code.co_filename):
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return None

    def line_of(self, traceback: TracebackType | None) -> str | None:
        """Return `file:line` of the innermost line of the user's code in the traceback of an exception, or None if
        there is none."""
        return next(reversed(list(self._lines(traceback))), None)

    def is_accident(self, raised: BaseException | None) -> bool:
        """Return True if an exception comes from the user's code and is not raised there on purpose, that is, its
        innermost line has no `raise` and no `assert`. A failed lookup does not count as such an exception, since it may
        mean that something does not exist."""
        line = None if raised is None else self.line_of(raised.__traceback__)
        if line is None or isinstance(raised, LookupError | StopIteration):
            return False
        file, _, number = line.rpartition(":")
        return not linecache.getline(file, int(number)).lstrip().startswith(("raise", "assert"))

    def _lines(self, traceback: TracebackType | None) -> Iterable[str]:
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if self.owns(file):
                yield f"{file}:{traceback.tb_lineno}"
            traceback = traceback.tb_next


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE) and not file.startswith(_SUITES)
