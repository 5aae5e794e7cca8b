"""Long computations in a thread, which a run that is stopped does not wait for.

    learned = await unless_given_up(learn, learning, groups, step, stop=stop)

In the thread, `may_go_on()` stands between the parts of a computation and `changing()` around what alters weights; elsewhere both
do nothing. The part that is under way when a computation is given up runs on, and leads to nothing.
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
"""How long a stop waits for what is being computed. With a supervisor that is gone there are 8 s for that and a checkpoint."""
_AFTER_LAST_CHANGE_SECONDS = 1.0


class GivenUp(Exception):
    """Nobody waits for this computation any more. Who stopped it sees this only where weights had changed by then, as they do
    between two passes over a batch: they are those of no step."""


@final
class _Computation:
    """What a thread does, and may be told to leave."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while weights change, which so happens as a whole or not at all."""
        self._is_given_up = False
        self.has_changed = False

    def may_go_on(self) -> None:
        if self._is_given_up:
            raise GivenUp

    @contextmanager
    def changing(self) -> Iterator[None]:
        with self._lock:
            self.may_go_on()
            self.has_changed = True
            yield

    def give_up(self) -> None:
        """Afterwards it changes nothing any more; waits for a change under way."""
        with self._lock:
            self._is_given_up = True


_current: ContextVar[_Computation | None] = ContextVar("_current", default=None)
_left: set[asyncio.Task[Any]] = set()
"""Given up, and still in the part that was under way."""


def may_go_on() -> None:
    """A place at which a computation may end. Raises GivenUp when nobody waits for it."""
    if (computation := _current.get()) is not None:
        computation.may_go_on()


@contextmanager
def changing() -> Iterator[None]:
    """Around what alters weights. Raises GivenUp, before, when nobody waits for it."""
    if (computation := _current.get()) is None:
        yield
        return
    with computation.changing():
        yield


async def unless_given_up(
    function: Callable[..., Result], *arguments: Any, stop: asyncio.Event, patience_seconds: float = PATIENCE_SECONDS
) -> Result | None:
    """What a function gives that runs in a thread. None when `stop` comes and it takes longer than `patience_seconds` from then
    on: it has changed nothing, and will not.

    Raises what the function raises, and GivenUp when some of what it changes had changed by then.
    """
    computation = _Computation()
    computing = asyncio.ensure_future(asyncio.to_thread(_run, computation, partial(function, *arguments)))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({computing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({computing}, timeout=patience_seconds)
        if computing.done():
            return computing.result()
        await asyncio.to_thread(computation.give_up)
        # One that has made its last change is as good as done.
        await asyncio.wait({computing}, timeout=_AFTER_LAST_CHANGE_SECONDS if computation.has_changed else 0.0)
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
    if computing.done() and not isinstance(computing.exception(), GivenUp):
        return computing.result()
    _left.add(computing)
    computing.add_done_callback(_ended)
    if computation.has_changed:
        raise GivenUp
    return None


def is_any_left() -> bool:
    """Whether a thread is still in what was given up."""
    return bool(_left)


async def none_left() -> None:
    """Wait until no thread is in what was given up."""
    if _left:
        await asyncio.wait(_left)


def _run(computation: _Computation, function: Callable[[], Result]) -> Result:
    _current.set(computation)  # in a context of this call's own
    return function()


def _ended(computing: asyncio.Task[Any]) -> None:
    _left.discard(computing)
    if not computing.cancelled():
        computing.exception()  # nobody asks what became of it
