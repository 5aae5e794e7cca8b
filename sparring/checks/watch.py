"""Calls of user code under a deadline, with a note of the call under way that outlives the process."""

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

from sparring.checks.timing import CALL_SECONDS, SLOWER_THAN_START, START_SECONDS, load_of_machine
from sparring.errors import InfrastructureError

_NOTE_BYTES = 512
_STARTS = ("__init__", "reset")


class CallTimeoutError(InfrastructureError):
    """A call of user code had not returned in time."""


class _TooLong(BaseException):
    """Raised by the alarm inside a call that does not return; not an Exception, so that no tool swallows it."""


@final
class Watch:
    """Knows which call of user code is under way, and ends it after a time.

    A call in Python is interrupted by an alarm, which only the main thread can have; one inside a library that never
    returns is left to the process that reads the note. How long a call may take follows from how long the environment takes
    to start and reset, and from the load of the machine.
    """

    def __init__(
        self, note: Path | None = None, *, seconds: float = CALL_SECONDS, start_seconds: float = START_SECONDS
    ) -> None:
        self.seconds = seconds
        self.start_seconds = start_seconds
        self.patience = 1.0
        """What limits are multiplied by at least: more than 1 on a machine that was busy when the check began."""
        self.observe: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered around every call: what looks at what user code does."""
        self.raised: Exception | None = None
        """What the last call raised, with its traceback; None when it returned."""
        self._starts: dict[str, float] = {}
        self._lost: dict[str, list[CallTimeoutError]] = {}
        self._note: mmap.mmap | None = None
        if note is not None:
            with note.open("w+b") as file:
                file.truncate(_NOTE_BYTES)
                self._note = mmap.mmap(file.fileno(), _NOTE_BYTES)

    def limit(self, what: str) -> float:
        """How many seconds a call may take: `what` begins with `Class.method(`."""
        method = _method(what).rpartition(".")[2]
        is_first_start = method in _STARTS and method not in self._starts
        seconds = max(self.seconds, SLOWER_THAN_START * sum(self._starts.values()))
        return (max(seconds, self.start_seconds) if is_first_start else seconds) * max(self.patience, load_of_machine())

    def call(self, what: str, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        """Call user code: its result, or what it is to be awaited for. Raises CallTimeoutError, naming the call, when it takes
        too long."""
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
        """A block that calls user code. Raises CallTimeoutError, naming it, when it takes too long; what took too long twice,
        or once for long, is not called again."""
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
        """A block without a limit of its own; the process that reads the note ends it."""
        self._write(what)
        yield
        self._write("")

    def _started(self, what: str, seconds: float) -> None:
        """Remember how long the environment takes to start: the longest of its starts and resets."""
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


def _method(what: str) -> str:
    """`Desk.find` of `Desk.find(title='Emma')`."""
    return what.partition("(")[0]


def timeout_in(error: BaseException | None) -> CallTimeoutError | None:
    """The call that did not return in time, if an error came from one."""
    while error is not None and not isinstance(error, CallTimeoutError):
        error = error.__cause__
    return error


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
