"""One event loop on a thread of its own, so that sync public methods work in scripts and notebooks alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run, args=(loop,), name="sparring-loop", daemon=True).start()
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # A task that calls sys.exit or raises KeyboardInterrupt (signals come to the main thread alone) ends the loop, too;
        # whoever waits for that task needs the loop to be told.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
            return


def submit(coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Run a coroutine on the background loop; the future's `result()` waits for it."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


def call_soon(function: Callable[[], object]) -> None:
    """Call a function on the background loop, soon."""
    _loop().call_soon_threadsafe(function)
