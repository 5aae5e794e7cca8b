"""Ctrl-C and SIGTERM: the first asks for an orderly stop, which is waited for; the second is handled as ever."""

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

from sparring import background
from sparring.logs import get_logger

logger = get_logger(__name__)

Result = TypeVar("Result")

STOP_SECONDS: Final = 35.0
"""How long `run` waits for what it has cancelled: as long as environments may take to close, and a little more."""
SAME_SECONDS: Final = 0.5
"""A signal that comes so soon after the first is the same request: a service manager sends it to every process of a command, and
the supervisor passes its own on."""
ANNOUNCE_SECONDS: Final = 1.0
"""A stop that takes longer is announced."""
_asked: signal.Signals | None = None


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it ends a command as Ctrl-C does."""


def raise_on_signals() -> None:
    """Have Ctrl-C raise KeyboardInterrupt and SIGTERM Terminated in the main thread from now on, also where a shell that starts a
    command in the background has it ignore the first."""

    def terminate(*_: object) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, terminate)


def _reset_in_child() -> None:
    """A process that user code has forked, by multiprocessing say, is no command: it ends on SIGTERM, as ever."""
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if getattr(signal.getsignal(number), "__module__", None) == __name__:
            signal.signal(number, default)


os.register_at_fork(after_in_child=_reset_in_child)


def exit_code(error: KeyboardInterrupt) -> int:
    """As shells count it: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def is_stopping() -> bool:
    """Whether the first request came: a second one would end what is being written."""
    return _asked is not None


@contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first Ctrl-C or SIGTERM into `stop()`; the second is handled as before. Only in the main thread."""
    global _asked
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    asked_at = 0.0

    def asked(number: int, _: object) -> None:
        nonlocal asked_at
        global _asked
        if _asked is None:
            _asked, asked_at = signal.Signals(number), time.monotonic()
            stop()
        elif time.monotonic() - asked_at > SAME_SECONDS:
            restore()
            signal.raise_signal(signal.Signals(number))

    _asked = None
    for number in previous:
        signal.signal(number, asked)
    try:
        yield
    finally:
        restore()


def run(coroutine: Coroutine[Any, Any, Result], *, stop_seconds: float = STOP_SECONDS) -> Result:
    """Run a coroutine on the background loop; blocks. The first Ctrl-C or SIGTERM cancels it, so that it closes what it has
    opened, and raises KeyboardInterrupt or Terminated when it is over, or has not ended within `stop_seconds`. The second one
    raises at once.
    """
    asked, stop = threading.Event(), asyncio.Event()
    running = background.submit(_unless_stopped(coroutine, stop))

    def cancel() -> None:
        asked.set()
        background.call_soon(stop.set)

    asked_at, is_announced = 0.0, False
    with interrupts(cancel):
        while not wait({running}, 0.2).done:
            if not asked.is_set():
                continue
            asked_at = asked_at or time.monotonic()
            waited = time.monotonic() - asked_at
            if waited > stop_seconds:
                logger.warning("what is open was not closed within %g s; it is ended by force", stop_seconds)
                raise interruption()
            if waited > ANNOUNCE_SECONDS and not is_announced:
                is_announced = True
                logger.warning(
                    "stopping: what is open is being closed; a second Ctrl-C or SIGTERM does not wait for it"
                )
    if asked.is_set() and (running.cancelled() or running.exception() is not None):
        raise interruption()
    return running.result()


def interruption() -> KeyboardInterrupt:
    """What the request that came stands for."""
    return Terminated() if _asked is signal.SIGTERM else KeyboardInterrupt()


async def _unless_stopped(coroutine: Coroutine[Any, Any, Result], stop: asyncio.Event) -> Result:
    """Cancels the coroutine when `stop` is set. An event, since a task that is cancelled before its first step never runs."""
    running, stopping = asyncio.ensure_future(coroutine), asyncio.ensure_future(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    (stopping if running.done() else running).cancel()
    await asyncio.wait({running, stopping})
    return running.result()
