"""Calls of user code under a deadline, with a note of the call under way that outlives the process."""

from __future__ import annotations

import asyncio
import inspect
import mmap
import signal
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, final

from sparring.errors import InfrastructureError

CALL_SECONDS = 5.0
"""What one call of user code may take."""
_NOTE_BYTES = 512


class _TooLong(BaseException):
    """Raised by the alarm inside a call that does not return; not an Exception, so that no tool swallows it."""


@final
class Watch:
    """Knows which call of user code is under way, and ends it after a time.

    A call in Python is interrupted by an alarm, which only the main thread can have; one inside a library that never
    returns is left to whoever watches the process, and reads the note.
    """

    def __init__(self, note: Path | None = None, *, seconds: float = CALL_SECONDS) -> None:
        self.seconds = seconds
        self.observe: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered around every call: what looks at what user code does."""
        self._note: mmap.mmap | None = None
        if note is not None:
            with note.open("w+b") as file:
                file.truncate(_NOTE_BYTES)
                self._note = mmap.mmap(file.fileno(), _NOTE_BYTES)

    def call(self, what: str, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        """Call user code: its result, or what it is to be awaited for. Raises InfrastructureError, naming the call, when it
        takes too long."""
        with self.calling(what):
            result = function(*arguments, **options)
        return self._awaited(what, result) if inspect.isawaitable(result) else result

    async def _awaited(self, what: str, awaitable: Awaitable[Any]) -> Any:
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                return await _Stepped(self, what, awaitable)
        except TimeoutError:
            if limit.expired():
                raise self._too_long(what) from None
            raise

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """A block that calls user code. Raises InfrastructureError, naming it, when it takes too long."""
        self._write(what)
        try:
            with _alarm(self.seconds), self.observe():
                yield
        except _TooLong:
            raise self._too_long(what) from None
        finally:
            self._write("")

    @contextmanager
    def loading(self, what: str) -> Iterator[None]:
        """A block that may take as long as it takes; whoever watches the process ends it."""
        self._write(what)
        yield
        self._write("")

    def _too_long(self, what: str) -> InfrastructureError:
        waited = self.seconds
        # What hangs once mostly hangs again, and a check is short.
        self.seconds = max(0.5, self.seconds / 2)
        return InfrastructureError(f"{what} had not returned after {waited:g} s")

    def _write(self, what: str) -> None:
        if self._note is not None:
            self._note[:] = what.encode()[:_NOTE_BYTES].ljust(_NOTE_BYTES, b"\0")


@final
class _Stepped:
    """An awaitable each of whose steps is a call under the alarm: between them other episodes play."""

    def __init__(self, watch: Watch, what: str, awaitable: Awaitable[Any]) -> None:
        self._watch, self._what, self._awaitable = watch, what, awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._awaitable.__await__()
        step: Callable[[Any], Any] = steps.send
        given: Any = None
        while True:
            with self._watch.calling(self._what):
                try:
                    waited = step(given)
                except StopIteration as end:
                    return end.value
            try:
                given, step = (yield waited), steps.send
            except BaseException as error:  # noqa: BLE001 - passed on to where it belongs
                given, step = error, steps.throw


def read_note(note: Path) -> str:
    """The call that was under way when its process wrote last, empty when none."""
    return note.read_bytes().rstrip(b"\0").decode(errors="replace")


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    # Nested calls (a tool that plays another environment) keep the outer alarm.
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def expire(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, expire)
    # Repeated, for the first may be raised where it is swallowed: in a destructor, in a bare `except`.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
