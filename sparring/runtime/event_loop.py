"""One event loop on its own thread, so that synchronous public methods work both in scripts and in notebooks."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 (Imported first, so that its exit handler runs after ours.)
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")

END_SECONDS = 10.0
"""Time that the process waits at its end for coroutines that were passed to `finish`."""
_finishing: set[Future[Any]] = set()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run, args=(loop,), name="sparring-loop", daemon=True).start()
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # A task that calls sys.exit or raises KeyboardInterrupt also ends the loop. (Ctrl-C does not, because signals
        # reach only the main thread.) The loop must continue for code that waits for such a task.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
            return


def submit(coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Run a coroutine on the background loop and return its future. `result()` of the future waits for the
    coroutine."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


def finish(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine on the background loop. The process waits for the coroutine only when it exits.

    Without this wait, a thread might free tensors while the interpreter shuts down. The interpreter would then
    terminate the thread inside C++ code, which would abort the process with SIGABRT.
    """
    future = submit(coroutine)
    _finishing.add(future)
    future.add_done_callback(_finishing.discard)


def _wait_for_finishing() -> None:
    wait(tuple(_finishing), END_SECONDS)


# Handlers of `atexit` would run after the shutdown of the thread pools that the loop needs.
threading._register_atexit(_wait_for_finishing)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def call_soon(function: Callable[[], object]) -> None:
    """Schedule a function on the background loop and return at once."""
    _loop().call_soon_threadsafe(function)
