"""Deadlines for calls to user code. The name of the running call is stored in a file that outlives the process."""

from __future__ import annotations

import asyncio
import inspect
import mmap
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, final

from sparring.checks.running.time_budget import CALL_SECONDS, SLOWER_THAN_START, START_SECONDS, load_of_machine
from sparring.errors import InfrastructureError

_NOTE_BYTES = 512
_STARTS = ("__init__", "reset", "run_agent")


class CallTimeoutError(InfrastructureError):
    """A call of user code did not return in time."""


class _TooLong(BaseException):
    """The alarm raises this exception in a call that takes too long. It is not an Exception, so `except Exception` does
    not catch it."""


@final
class Watch:
    """Records the running call of user code, and interrupts it after its time limit.

    An alarm interrupts Python code, but only in the main thread. If a call hangs inside a C library, the process that
    reads the file `note` terminates this process. The time limit of a call depends on how long the environment takes to
    start and reset, and on the load on the machine.
    """

    def __init__(
        self, note: Path | None = None, *, seconds: float = CALL_SECONDS, start_seconds: float = START_SECONDS
    ) -> None:
        self.seconds = seconds
        self.start_seconds = start_seconds
        self.patience = 1.0
        """The smallest factor by which all limits are multiplied. It is more than 1 if the machine was busy when the
        check started."""
        self.observe: Callable[[], AbstractContextManager[None]] = nullcontext
        """A context manager around every call, which observes the user code."""
        self.raised: Exception | None = None
        """The exception of the last call, with its traceback; None if the call returned."""
        self._starts: dict[str, float] = {}
        self._lost: dict[str, list[CallTimeoutError]] = {}
        self._note: mmap.mmap | None = None
        if note is not None:
            with note.open("w+b") as file:
                file.truncate(_NOTE_BYTES)
                self._note = mmap.mmap(file.fileno(), _NOTE_BYTES)

    def limit(self, what: str) -> float:
        """Return the time limit of a call in seconds. `what` begins with `Class.method(`."""
        method = _method(what).rpartition(".")[2]
        is_first_start = method in _STARTS and method not in self._starts
        seconds = max(self.seconds, SLOWER_THAN_START * sum(self._starts.values()))
        return (max(seconds, self.start_seconds) if is_first_start else seconds) * max(self.patience, load_of_machine())

    def call(self, what: str, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        """Call user code and return its result, or an awaitable that resolves to it. Raises CallTimeoutError, which
        identifies the call, if the call takes too long."""
        with self.calling(what):
            result = function(*arguments, **options)
        return self._awaited(what, result) if inspect.isawaitable(result) else result

    async def _awaited(self, what: str, awaitable: Awaitable[Any]) -> Any:
        began, seconds = time.monotonic(), self.limit(what)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                result = await _Stepped(self, what, awaitable)
        except TimeoutError:
            if limit.expired():
                raise self._too_long(what, seconds) from None
            raise
        self._started(what, time.monotonic() - began)
        return result

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Limit the time of a block that calls user code. Raises CallTimeoutError, which identifies the call, if the
        block takes too long. A method that timed out twice is not called again. A constructor or `reset` is not called
        again after a single timeout."""
        lost = self._lost.get(_method(what), ())
        if len(lost) > 1 or (lost and _method(what).endswith(_STARTS)):
            raise lost[0]
        began, seconds = time.monotonic(), self.limit(what)
        self.raised = None
        self._write(what)
        try:
            with _alarm(seconds), self.observe():
                yield
        except _TooLong:
            raise self._too_long(what, seconds) from None
        except Exception as error:
            self.raised = error
            raise
        finally:
            self._write("")
        self._started(what, time.monotonic() - began)

    @contextmanager
    def loading(self, what: str) -> Iterator[None]:
        """Record a block that has no time limit here. The process that reads the note may terminate this process."""
        self._write(what)
        yield
        self._write("")

    def _started(self, what: str, seconds: float) -> None:
        """Record the longest time that the start and reset of the environment have taken so far."""
        method = _method(what).rpartition(".")[2]
        if method in _STARTS:
            self._starts[method] = max(seconds, self._starts.get(method, 0.0))

    def _too_long(self, what: str, seconds: float) -> CallTimeoutError:
        error = CallTimeoutError(f"{what} had not returned after {seconds:.3g} s")
        self._lost.setdefault(_method(what), []).append(error)
        return error

    def _write(self, what: str) -> None:
        if self._note is not None:
            self._note[:] = what.encode()[:_NOTE_BYTES].ljust(_NOTE_BYTES, b"\0")


@final
class _Stepped:
    """An awaitable that runs each step under the alarm. Other episodes may run between its steps."""

    def __init__(self, watch: Watch, what: str, awaitable: Awaitable[Any]) -> None:
        self._watch, self._what, self._awaitable = watch, what, awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._awaitable.__await__()
        step: Callable[[Any], Any] = steps.send
        sent: Any = None
        while True:
            with self._watch.calling(self._what):
                try:
                    waited = step(sent)
                except StopIteration as end:
                    return end.value
            try:
                sent, step = (yield waited), steps.send
            except BaseException as error:  # noqa: BLE001 - passed on to the awaitable
                sent, step = error, steps.throw


def _method(what: str) -> str:
    """Return `Desk.find` for `Desk.find(title='Emma')`."""
    return what.partition("(")[0]


def timeout_in(error: BaseException | None) -> CallTimeoutError | None:
    """Return the call timeout that caused an error, if any."""
    while error is not None and not isinstance(error, CallTimeoutError):
        error = error.__cause__
    return error


def read_note(note: Path) -> str:
    """Return the call that was running when the process last wrote the note, or "" if there was none."""
    return note.read_bytes().rstrip(b"\0").decode(errors="replace")


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    # Nested calls (a tool that runs another environment) keep the outer alarm.
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def expire(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, expire)
    # The alarm repeats, because the first exception may be lost in a destructor or in a bare `except`.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
