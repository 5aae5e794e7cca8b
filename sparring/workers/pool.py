"""The workers of a run. Processes on this machine are started on demand, and workers on other machines connect. All are
monitored, and replaced when they die or hang."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, final

from sparring.errors import InfrastructureError, ServiceError
from sparring.metering.usage import current_meter
from sparring.sandbox.limits import end_of_programs
from sparring.types import Json
from sparring.workers.child import ChildProcess
from sparring.workers.code import Code
from sparring.workers.listener import Listener, Listening
from sparring.workers.worker import Answering, Link, Request, Worker, encode

Result = TypeVar("Result")

_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def use_separate_workers() -> Iterator[None]:
    """Give each `Place` that is created within the block a separate worker process."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


@final
class WorkerPool:
    """Workers, managed by the pool's own event loop. They are therefore monitored independently of other event loops.

    Methods may be called from any thread.
    """

    def __init__(
        self, num_workers: int, code: Code, *, silence_seconds: float, listening: Listening | None = None
    ) -> None:
        """Create a pool of at most `num_workers` processes on this machine. With `listening`, workers on other machines
        connect in addition. Every worker loads `code`. A worker that does not return to its event loop for
        `silence_seconds` is replaced.

        Raises UsageError if the options of the code are not JSON.
        """
        self._beat_seconds = min(1.0, silence_seconds / 4)
        self._hello = encode({"code": code, "beat_seconds": self._beat_seconds}, "environment.options")
        self._listener = None if listening is None else Listener(listening, self._hello, self._monitor)
        self._num_workers = num_workers
        self._silence_seconds = silence_seconds
        self._workers: list[Worker] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    async def ask(
        self, place: Place, do: str, *arguments: Json, what: str, answering: Answering | None = None
    ) -> Mapping[str, Any]:
        """Return the reply of the place's worker, as input for `wire.decode_result`. In errors, `what` describes the
        request.

        Cancelling the call also cancels it in the worker. Raises InfrastructureError when the worker dies or is
        replaced, and UsageError for arguments that are not JSON.
        """
        asking = self._ask(place, do, arguments, what, answering, asyncio.get_running_loop())
        return await asyncio.wrap_future(self._submit(asking))

    def ask_now(self, place: Place, do: str, *arguments: Json, what: str) -> Mapping[str, Any]:
        """Call `ask`, and block the calling thread until the reply."""
        return self._submit(self._ask(place, do, arguments, what)).result()

    async def wait_until_ready(self) -> None:
        """Wait until there is a worker for the next episode. With processes on this machine, there always is one.

        Raises ServiceError if no worker connects in time, or if the address to listen on is in use.
        """
        if self._listener is not None and self._num_workers == 0:
            await asyncio.wrap_future(self._submit(self._wait_until_ready(_ALONE.get())))

    def leave(self, place: Place) -> None:
        """Release a place that will get no more requests."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._left, place)

    async def aclose(self) -> None:
        """Stop all workers, and kill those that take longer than END_SECONDS. A later request would start new
        workers."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end_all(), loop))
            loop.call_soon_threadsafe(loop.stop)

    async def _wait_until_ready(self, is_alone: bool) -> None:
        try:
            await self._find_worker(is_alone)
        except InfrastructureError as error:
            raise ServiceError(f"{error} `sparring train --resume` continues the run.") from error

    async def _end_all(self) -> None:
        if self._listener is not None:
            await self._listener.aclose()
        workers, self._workers = self._workers, []
        await asyncio.gather(*(one.aclose() for one in workers), *self._ending)
        # Requests that waited have failed, and their callers get the errors before the loop stops.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=1.0)

    def _submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # Workers are children of this thread: the kernel ends them when the thread ends.
                threading.Thread(target=_run, args=(self._loop,), name="sparring-workers", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _ask(
        self,
        place: Place,
        do: str,
        arguments: tuple[Json, ...],
        what: str,
        answering: Answering | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Mapping[str, Any]:
        if place.worker is None:
            place.enter(await self._find_worker(place.is_alone))
        assert place.worker is not None
        message = {
            "do": do,
            "place": place.number,
            "arguments": arguments,
            "meter": current_meter(),
            "end": end_of_programs(),
        }
        return await place.worker.ask(message, Request(what, answering, loop))

    async def _find_worker(self, is_alone: bool) -> Worker:
        """Return the worker for a new place. Raises InfrastructureError and ServiceError of the listener."""
        if self._listener is not None:
            await self._listener.start()
            if self._num_workers == 0:
                return await self._listener.find(is_spare=is_alone)
        if is_alone:
            return self._start_worker()
        self._workers = [one for one in self._workers if not one.is_over]
        connected = [] if self._listener is None else self._listener.list_workers()
        is_idle = any(one.num_places == 0 for one in (*self._workers, *connected))
        if not is_idle and len(self._workers) < self._num_workers:
            self._workers.append(self._start_worker())
        return min((*self._workers, *connected), key=lambda one: one.num_places)

    def _start_worker(self) -> Worker:
        return self._monitor(ChildProcess(self._hello))

    def _monitor(self, link: Link) -> Worker:
        return Worker(link, beat_seconds=self._beat_seconds, silence_seconds=self._silence_seconds)

    def _left(self, place: Place) -> None:
        place.leave()
        if place.is_alone and place.worker is not None:
            ending = asyncio.ensure_future(place.worker.aclose())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


@final
class Place:
    """The place where one episode's environment, or the grading of one episode, runs. The worker is chosen at the first
    request."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self.is_alone = _ALONE.get()
        self.worker: Worker | None = None

    def enter(self, worker: Worker) -> None:
        self.worker = worker
        worker.num_places += 1

    def leave(self) -> None:
        if self.worker is not None:
            self.worker.num_places -= 1


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
