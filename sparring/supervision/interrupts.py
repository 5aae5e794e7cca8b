"""Ctrl-C and SIGTERM: the first asks for an orderly stop, the second is handled as ever."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_asked = threading.Event()


def is_stopping() -> bool:
    """Whether the first request came: a second one would end what is being written."""
    return _asked.is_set()


@contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first Ctrl-C or SIGTERM into `stop()`; the second is handled as before. Only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def first(*_: object) -> None:
        _asked.set()
        restore()
        stop()

    _asked.clear()
    for number in previous:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
