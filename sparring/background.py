"""One event loop on a thread of its own, so that sync public methods work in scripts and notebooks alike."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 (ends after what is registered below, since it is imported before)
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")

END_SECONDS = 10.0
"""How long the end of the process waits for what was given to `finish`."""
_finishing: set[Future[Any]] = set()


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


def finish(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine on the background loop for which nobody waits but the end of the process.

    A thread that frees tensors while the interpreter goes away is ended inside of C++, and takes the process down with SIGABRT.
    """
    future = submit(coroutine)
    _finishing.add(future)
    future.add_done_callback(_finishing.discard)


def _wait_for_the_rest() -> None:
    wait(tuple(_finishing), END_SECONDS)


# Not `atexit`, which comes after the thread pools are shut down that the loop needs to finish anything.
threading._register_atexit(_wait_for_the_rest)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def call_soon(function: Callable[[], object]) -> None:
    """Call a function on the background loop, soon."""
    _loop().call_soon_threadsafe(function)
