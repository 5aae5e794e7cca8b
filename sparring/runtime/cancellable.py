"""Runs long computations in a thread that a run can abandon when it stops.


        result = await run_cancellable(learn, rule, groups, step, stop=stop)

Inside the thread, call `raise_if_cancelled()` between the parts of a computation, and use `guard_change()` around code
that alters weights. Outside such a thread, these functions do nothing. An abandoned computation finishes its current
part, and its result is discarded.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, final

Result = TypeVar("Result")

PATIENCE_SECONDS = 3.0
"""Time that a stop allows the current computation. After the loss of a supervisor, 8 s remain for this time and a
checkpoint."""
_AFTER_LAST_CHANGE_SECONDS = 1.0


class Cancelled(Exception):
    """The computation was abandoned.

    The caller that stopped the computation receives this error only if weights have already changed, for example
    between two passes over a batch. The weights then do not belong to any step.
    """


@final
class _Computation:
    """One computation in a thread that may be cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while weights change, so that a change happens as a whole or not at all."""
        self._is_cancelled = False
        self.has_changed = False

    def raise_if_cancelled(self) -> None:
        if self._is_cancelled:
            raise Cancelled

    @contextmanager
    def guard_change(self) -> Iterator[None]:
        with self._lock:
            self.raise_if_cancelled()
            self.has_changed = True
            yield

    def cancel(self) -> None:
        """Prevent all further changes. This waits for a change in progress."""
        with self._lock:
            self._is_cancelled = True


_current: ContextVar[_Computation | None] = ContextVar("_current", default=None)
_abandoned: set[asyncio.Task[Any]] = set()
"""Cancelled tasks that still run in their thread."""


def raise_if_cancelled() -> None:
    """Mark a place where a computation may end. Raises Cancelled if the computation was abandoned."""
    if (computation := _current.get()) is not None:
        computation.raise_if_cancelled()


@contextmanager
def guard_change() -> Iterator[None]:
    """Wrap code that alters weights. Raises Cancelled on entry if the computation was abandoned."""
    if (computation := _current.get()) is None:
        yield
        return
    with computation.guard_change():
        yield


async def run_cancellable(
    function: Callable[..., Result], *arguments: Any, stop: asyncio.Event, patience_seconds: float = PATIENCE_SECONDS
) -> Result | None:
    """Run a function in a thread and return its result.

    Returns None if `stop` is set and the function then needs more than `patience_seconds`. In this case the function
    has changed nothing, and it will change nothing later.

    Raises the errors of the function, and Cancelled if the function was abandoned after some of its changes.
    """
    computation = _Computation()
    computing = asyncio.ensure_future(asyncio.to_thread(_run, computation, partial(function, *arguments)))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({computing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({computing}, timeout=patience_seconds)
        if computing.done():
            return computing.result()
        await asyncio.to_thread(computation.cancel)
        # A computation that has made its last change is almost complete.
        await asyncio.wait({computing}, timeout=_AFTER_LAST_CHANGE_SECONDS if computation.has_changed else 0.0)
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
    if computing.done() and not isinstance(computing.exception(), Cancelled):
        return computing.result()
    _abandoned.add(computing)
    computing.add_done_callback(_ended)
    if computation.has_changed:
        raise Cancelled
    return None


def has_abandoned() -> bool:
    """Return whether a thread still runs an abandoned computation."""
    return bool(_abandoned)


async def wait_for_abandoned() -> None:
    """Wait until no thread runs an abandoned computation."""
    if _abandoned:
        await asyncio.wait(_abandoned)


def _run(computation: _Computation, function: Callable[[], Result]) -> Result:
    _current.set(computation)  # asyncio.to_thread runs this in a separate context.
    return function()


def _ended(computing: asyncio.Task[Any]) -> None:
    _abandoned.discard(computing)
    if not computing.cancelled():
        computing.exception()  # This marks the exception as retrieved.
