"""Handles Ctrl-C and SIGTERM. The first signal requests an orderly stop, and the second has its usual effect."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeVar

from sparring.runtime import event_loop
from sparring.runtime.logs import get_logger

logger = get_logger(__name__)

Result = TypeVar("Result")

STOP_SECONDS: Final = 35.0
"""Time that `run` waits for a cancelled coroutine: the time limit for closing environments, plus a margin."""
SAME_SECONDS: Final = 0.5
"""A second signal within this time belongs to the same request. A service manager signals every process of a command,
and the supervisor forwards its own signal."""
ANNOUNCE_SECONDS: Final = 1.0
"""A stop that takes longer than this time is announced."""
_received: signal.Signals | None = None
_is_open = False
"""Whether a block of `interrupts` is running."""


class Terminated(KeyboardInterrupt):
    """Raised when SIGTERM ends a command, as KeyboardInterrupt is for Ctrl-C."""


def raise_on_signals() -> None:
    """Make Ctrl-C raise KeyboardInterrupt, and SIGTERM raise Terminated, in the main thread.

    This also works if a shell started the command in the background and made it ignore Ctrl-C.
    """

    def terminate(*_: object) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, terminate)


def _reset_in_child() -> None:
    """Restore the default handlers in processes that user code forks (multiprocessing), so that SIGTERM ends them."""
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if getattr(signal.getsignal(number), "__module__", None) == __name__:
            signal.signal(number, default)


os.register_at_fork(after_in_child=_reset_in_child)


def exit_code(error: KeyboardInterrupt) -> int:
    """Return the exit code that shells expect: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def is_stopping() -> bool:
    """Return whether a stop was requested. If so, a second signal would interrupt writes in progress."""
    return _received is not None


def raise_if_stopping() -> None:
    """Raise the exception of the signal that was received in the running block of `interrupts`, if there is one. Call it in
    waits in which nothing can be lost."""
    if _is_open and _received is not None:
        raise interruption()


@contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C or SIGTERM. The second signal has its usual effect. Main thread only."""
    global _received, _is_open
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    received_at = 0.0

    def receive(number: int, _: object) -> None:
        nonlocal received_at
        global _received
        if _received is None:
            _received, received_at = signal.Signals(number), time.monotonic()
            stop()
        elif time.monotonic() - received_at > SAME_SECONDS:
            restore()
            signal.raise_signal(signal.Signals(number))

    _received, _is_open = None, True
    for number in previous:
        signal.signal(number, receive)
    try:
        yield
    finally:
        _is_open = False
        restore()


def run(coroutine: Coroutine[Any, Any, Result], *, stop_seconds: float = STOP_SECONDS) -> Result:
    """Run a coroutine on the background loop, and wait for its result.

    The first Ctrl-C or SIGTERM cancels the coroutine, so that it can release its resources. KeyboardInterrupt or
    Terminated is raised once the coroutine has ended or `stop_seconds` have passed. The second signal raises the
    exception at once.
    """
    requested, stop = threading.Event(), asyncio.Event()
    running = event_loop.submit(_unless_stopped(coroutine, stop))

    def cancel() -> None:
        requested.set()
        event_loop.call_soon(stop.set)

    requested_at, is_announced = 0.0, False
    with interrupts(cancel):
        while not wait({running}, 0.2).done:
            if not requested.is_set():
                continue
            requested_at = requested_at or time.monotonic()
            waited = time.monotonic() - requested_at
            if waited > stop_seconds:
                logger.warning(
                    "open resources were not closed within %g s; the command is now terminated", stop_seconds
                )
                raise interruption()
            if waited > ANNOUNCE_SECONDS and not is_announced:
                is_announced = True
                logger.warning("stopping: open resources are being closed; press Ctrl-C again to end at once")
    if requested.is_set() and (running.cancelled() or running.exception() is not None):
        raise interruption()
    return running.result()


def interruption() -> KeyboardInterrupt:
    """Return the exception for the signal that was received."""
    return Terminated() if _received is signal.SIGTERM else KeyboardInterrupt()


async def _unless_stopped(coroutine: Coroutine[Any, Any, Result], stop: asyncio.Event) -> Result:
    """Run the coroutine, and cancel it when `stop` is set.

    An event is needed because a task that is cancelled before its first step never runs.
    """
    running, stopping = asyncio.ensure_future(coroutine), asyncio.ensure_future(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    (stopping if running.done() else running).cancel()
    await asyncio.wait({running, stopping})
    return running.result()
