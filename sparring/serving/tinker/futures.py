"""Computations that clients start with one request, and whose results they fetch with others.

The id of a computation follows from the request, so that a repeated request does not compute anything again. The requests of a
training run are computed in the order of their sequence ids.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

from sparring.errors import SparringError
from sparring.runtime.logs import get_logger
from sparring.serving.tinker.answers import ForwardResult, Result, SampleResult
from sparring.serving.tinker.refusal import Refusal

_logger = get_logger(__name__)

MOST_FINISHED: Final = 4096
"""The number of results that are kept for repeated requests."""
MOST_VALUES: Final = 20_000_000
"""The number of log-probabilities in the results that are kept: 0.6 GB."""
MOST_AHEAD: Final = 10_000
"""The number of requests of a training run that may wait for earlier ones."""

Compute: TypeAlias = Callable[[], Awaitable[Result]]


@dataclass(slots=True, kw_only=True, eq=False)
class Future:
    """A computation, from its request on."""

    id: str
    digest: str
    """The hash of the request."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    result: Result | None = None
    error: str | None = None
    is_clients_error: bool = False
    line: Line | None = None
    """The line of a training run in which this waits or waited."""
    task: asyncio.Task[None] | None = None

    @property
    def num_values(self) -> int:
        """The number of log-probabilities in the result."""
        return self.result.num_values if isinstance(self.result, ForwardResult | SampleResult) else 0

    async def run(self, compute: Compute) -> None:
        """Compute the result or the error."""
        try:
            self.result = await compute()
        except asyncio.CancelledError:
            self.error, self.is_clients_error = "the request was cancelled.", True
            raise
        except (Refusal, SparringError, ValueError) as error:
            self.error, self.is_clients_error = str(error), True
        except Exception as error:
            _logger.exception("a request of a Tinker client failed")
            self.error = f"the server failed: {error!r}. Its log has more."
        finally:
            self.done.set()


@final
class Futures:
    """The computations of a server."""

    def __init__(self) -> None:
        self._futures: OrderedDict[str, Future] = OrderedDict()

    def add(self, request_id: str, digest: str) -> tuple[Future, bool]:
        """Return a future, and whether it is new. Raises Refusal if another request has the same id."""
        known = self._futures.get(request_id)
        if known is not None:
            if known.digest != digest:
                raise Refusal(f"{request_id} is the id of another request; send a new sequence id with each request.")
            return known, False
        future = self._futures[request_id] = Future(id=request_id, digest=digest)
        self._forget()
        return future, True

    def remove(self, future: Future) -> None:
        """Forget a future that was not started."""
        self._futures.pop(future.id, None)

    def start(self, future: Future, compute: Compute) -> None:
        future.task = asyncio.create_task(future.run(compute))

    def find(self, request_id: str) -> Future:
        """Raises Refusal 410 for an unknown id."""
        try:
            return self._futures[request_id]
        except KeyError:
            raise Refusal(
                f"request_id: {request_id!r} is unknown: the server was restarted, or the result is no longer kept.",
                410,
            ) from None

    async def wait(self, request_id: str, seconds: float) -> Future:
        """Return a future when it is done, or after some seconds. Raises Refusal 410 for an unknown id."""
        future = self.find(request_id)
        with suppress(TimeoutError):
            await asyncio.wait_for(future.done.wait(), seconds)
        return future

    async def close(self) -> None:
        tasks = [future.task for future in self._futures.values() if future.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self) -> None:
        num_values = sum(one.num_values for one in self._futures.values())
        for future in list(self._futures.values()):
            if len(self._futures) <= MOST_FINISHED and num_values <= MOST_VALUES:
                return
            if future.done.is_set():
                num_values -= future.num_values
                del self._futures[future.id]


@final
class Line:
    """The requests of one training run, which are computed in the order of their sequence ids, from 1."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Future, Compute]] = {}
        self._next = 1
        self._task: asyncio.Task[None] | None = None

    def put(self, seq_id: int, future: Future, compute: Compute) -> None:
        """Compute a request when all before it are done. Raises Refusal if the sequence id was used before."""
        if seq_id < self._next or seq_id in self._waiting:
            raise Refusal(f"seq_id: {seq_id} was used already, and its result is no longer kept.", 410)
        if seq_id > self._next + MOST_AHEAD:
            raise Refusal(f"seq_id: {seq_id} is too far from the next request, which has {self._next}.")
        self._waiting[seq_id] = (future, compute)
        future.line = self
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    def find_missing(self) -> int | None:
        """Return the sequence id of the request for which all others wait, or None if a request is computed now."""
        is_idle = self._task is None or self._task.done()
        return self._next if is_idle and self._waiting else None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for future, _ in self._waiting.values():
            future.error = "the training run was unloaded."
            future.done.set()
        self._waiting.clear()  # the computations hold the adapter

    async def _work(self) -> None:
        while self._next in self._waiting:
            future, compute = self._waiting.pop(self._next)
            self._next += 1
            await future.run(compute)
