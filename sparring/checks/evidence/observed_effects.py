"""Side effects of an environment's own code: clock reads, random numbers, sockets, files and processes.

The interpreter's profiler records calls to C functions, whatever name they are imported under. The interpreter's audit
hook records the use of files and sockets. Each side effect is attributed to the innermost line of the environment's own
code.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeAlias, final

from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.user_source import OwnCode
from sparring.types import Json

Kind: TypeAlias = Literal["clock", "randomness", "network", "written", "read", "process"]

_CLOCKS = frozenset({"time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "asctime"})
_CLASS_CLOCKS = frozenset({"now", "utcnow", "today"})
_UNTIMED = frozenset({"strftime", "localtime", "gmtime", "ctime", "asctime"})
_QUIET = ("logging", "tempfile", "asyncio", "concurrent", "threading", "warnings")
"""Packages that read clocks and random numbers for their own purposes."""
_GLOBAL = random._inst  # pyright: ignore[reportAttributeAccessIssue]
_UUID = ("uuid1", "uuid4")
_SECRETS = ("token_bytes", "token_hex", "token_urlsafe", "choice", "randbelow", "randbits")


@dataclass(frozen=True, slots=True)
class SideEffect:
    """One kind of side effect at one line of the environment's own code."""

    kind: Kind
    what: str
    """What the code used: a function such as `time.time` or `random.choice`, an address, or a path."""
    place: str
    """The line of the environment's own code, as `file:line`."""

    def as_json(self) -> dict[str, Json]:
        return {"what": self.what, "line": self.place}


@final
class SideEffects:
    """A collector of the side effects that the user's own code causes."""

    def __init__(self, own: OwnCode, *, through_libraries: bool = True) -> None:
        """Create a collector. Without `through_libraries`, clock reads and random numbers of an installed library that the
        user's code calls are ignored, such as those of an HTTP client."""
        self.seen: dict[SideEffect, None] = {}
        self._own = own
        self._through_libraries = through_libraries
        self._depth = 0
        _LISTENERS.append(self)
        _listen()

    def of(self, *kinds: Kind) -> list[SideEffect]:
        """Return the side effects of these kinds."""
        return [one for one in self.seen if one.kind in kinds]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the side effects that occur in a block."""
        if self._depth:
            yield
            return
        self._depth += 1
        numpy_before = _numpy_state()
        before = sys.getprofile()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)
            self._depth -= 1
        if _numpy_state() != numpy_before:
            self._add("randomness", "numpy.random (the process-wide generator)", "the tools")

    def close(self) -> None:
        """Stop receiving events from the audit hook."""
        _LISTENERS.remove(self)

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Handle an event from the audit hook, on any thread."""
        if not self._depth:
            return
        frame = sys._getframe()
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            self._at(frame, "written" if writes else "read", _absolute(arguments[0]))
        elif event in ("os.mkdir", "tempfile.mkdtemp", "tempfile.mkstemp") or (
            event == "sqlite3.connect" and str(arguments[0]) not in (":memory:", "")
        ):
            self._at(frame, "written", _absolute(arguments[0]))
        elif event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            address = arguments[1] if event != "socket.getaddrinfo" else arguments[:2]
            self._at(frame, "network", str(address))
        elif event in ("subprocess.Popen", "os.system", "os.posix_spawn"):
            self._at(frame, "process", str(arguments[0]))

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            name, owner = argument.__name__, getattr(argument, "__self__", None)
            if owner is _GLOBAL:
                self._at(frame, "randomness", f"random.{name} (the process-wide generator)")
            elif getattr(owner, "__name__", None) == "time" and name in _CLOCKS:
                # With an argument, these functions only convert a time, but the profiler does not show arguments.
                if name not in _UNTIMED:
                    self._at(frame, "clock", f"time.{name}")
            elif name in _CLASS_CLOCKS and isinstance(owner, type) and issubclass(owner, date):
                self._at(frame, "clock", f"{'datetime' if issubclass(owner, datetime) else 'date'}.{name}")
            elif name == "urandom":
                self._at(frame, "randomness", "os.urandom")
            elif type(owner).__name__ == "RandomState":
                self._at(frame, "randomness", f"numpy.random.{name} (the process-wide generator)")
        elif event == "call":
            code = frame.f_code
            if code.co_filename == random.__file__:
                if frame.f_locals.get("self") is _GLOBAL:
                    self._at(frame.f_back, "randomness", f"random.{code.co_name} (the process-wide generator)")
                elif code.co_name == "__init__" and frame.f_locals.get("x", 0) is None:
                    self._at(frame.f_back, "randomness", "random.Random() without a seed")

    def _at(self, frame: FrameType | None, kind: Kind, what: str) -> None:
        """Record a side effect, unless a package caused it for its own purposes, or no code of the environment is on
        the stack."""
        through, innermost = "", self._own.line_below(frame)
        while frame is not None and not self._own.owns(frame.f_code.co_filename):
            module = str(frame.f_globals.get("__name__", ""))
            if kind in ("clock", "randomness") and not self._through_libraries and _is_installed(frame):
                return
            if module.split(".")[0] in _QUIET and kind in ("clock", "randomness"):
                return
            if module == "random" and kind == "randomness":
                through = f"random.{frame.f_code.co_name} (the process-wide generator)"
            if module in ("uuid", "secrets") and frame.f_code.co_name in (*_UUID, *_SECRETS):
                through = f"{module}.{frame.f_code.co_name}"
            frame = frame.f_back
        if innermost is not None:
            self._add(kind, through or what, innermost)

    def _add(self, kind: Kind, what: str, place: str) -> None:
        self.seen[SideEffect(kind, what, place)] = None


@final
class Observed:
    """A context manager that records the side effects of the user's own code in every call. By default, it is the code of
    the environment."""

    def __init__(self, subject: Subject, side_effects: SideEffects | None = None) -> None:
        self._subject = subject
        self._side_effects = side_effects or SideEffects(subject.own_code)

    def __enter__(self) -> SideEffects:
        self._before, self._subject.watch.observe = self._subject.watch.observe, self._side_effects.watching
        return self._side_effects

    def __exit__(self, *_: object) -> None:
        self._subject.watch.observe = self._before
        self._side_effects.close()


_EVENTS = frozenset({
    "open", "os.mkdir", "tempfile.mkdtemp", "tempfile.mkstemp", "sqlite3.connect", "socket.connect", "socket.getaddrinfo",
    "socket.sendto", "subprocess.Popen", "os.system", "os.posix_spawn",
})  # fmt: skip
_LISTENERS: list[SideEffects] = []
_is_listening = False


def _listen() -> None:
    """Install the audit hook, once per process, since it cannot be removed."""
    global _is_listening
    if not _is_listening:
        _is_listening = True
        sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    # Compare the name first, since the listeners raise events too.
    if event in _EVENTS:
        for listener in tuple(_LISTENERS):
            listener.heard(event, arguments)


def _is_installed(frame: FrameType) -> bool:
    return "site-packages" in frame.f_code.co_filename or "dist-packages" in frame.f_code.co_filename


def _absolute(path: Any) -> str:
    return str(Path(os.fsdecode(path)).absolute())


def _numpy_state() -> object:
    """Return the state of NumPy's process-wide generator, or None if NumPy is not loaded."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    name, keys, position, *rest = numpy.random.get_state()
    return name, keys.tobytes(), position, rest
