"""One event loop on a thread of its own, so that sync public methods work in scripts and notebooks alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="sparring-loop", daemon=True).start()
    return loop


def submit(coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Run a coroutine on the background loop; the future's `result()` waits for it."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


def call_soon(function: Callable[[], object]) -> None:
    """Call a function on the background loop, soon."""
    _loop().call_soon_threadsafe(function)
