"""The worker processes of a run. They are started on demand, monitored, and replaced when they die or hang."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeAlias, TypedDict, TypeVar, final

from sparring.errors import InfrastructureError, UsageError, WorkerLost
from sparring.metering.usage import current_meter
from sparring.runtime.keeper import wrap_in_keeper
from sparring.runtime.logs import get_logger
from sparring.sandbox.limits import end_of_programs
from sparring.types import Json
from sparring.workers.wire import frame, frame_outcome, receive

logger = get_logger(__name__)

Result = TypeVar("Result")
Answering: TypeAlias = Callable[[Mapping[str, Json]], Coroutine[Any, Any, Json]]
"""A function that handles requests from code in a worker during a call: turns of the episode's session."""

START_SECONDS = 60.0
"""Time limit for a worker to import its code."""
END_SECONDS = 2.0
"""Time for a worker to end, or to write its stack traces, before it is killed."""
END_KEEPER_SECONDS = 5.0
"""Time for a worker's keeper to kill the worker and all its descendants."""


class Code(TypedDict):
    """The code that a worker loads. Names are written as in a recipe, and parts that do not exist are None."""

    folder: str
    """The recipe's folder."""
    target: str | None
    options: Mapping[str, Json]
    reward: str | None
    scorer: str | None


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
    """Worker processes, managed by the pool's own event loop. They are therefore monitored independently of other event
    loops.

    Methods may be called from any thread.
    """

    def __init__(self, num_workers: int, code: Code, *, silence_seconds: float) -> None:
        """Create a pool. Every worker loads `code`. A worker that does not return to its event loop for
        `silence_seconds` is replaced.

        Raises UsageError if the options of the code are not JSON.
        """
        self._beat_seconds = min(1.0, silence_seconds / 4)
        self._hello = _sendable({"code": code, "beat_seconds": self._beat_seconds}, "environment.options")
        self._num_workers = num_workers
        self._silence_seconds = silence_seconds
        self._workers: list[_Worker] = []
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

    async def _end_all(self) -> None:
        workers, self._workers = self._workers, []
        await asyncio.gather(*(one.aclose() for one in workers), *self._ending)

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
            place.enter(self._new_worker() if place.is_alone else self._least_busy())
        assert place.worker is not None
        message = {
            "do": do,
            "place": place.number,
            "arguments": arguments,
            "meter": current_meter(),
            "end": end_of_programs(),
        }
        return await place.worker.ask(message, _Request(what, answering, loop))

    def _least_busy(self) -> _Worker:
        self._workers = [one for one in self._workers if not one.is_over]
        is_idle = any(one.num_places == 0 for one in self._workers)
        if not is_idle and len(self._workers) < self._num_workers:
            self._workers.append(self._new_worker())
        return min(self._workers, key=lambda one: one.num_places)

    def _new_worker(self) -> _Worker:
        return _Worker(self._hello, self._beat_seconds, self._silence_seconds)

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
        self.worker: _Worker | None = None

    def enter(self, worker: _Worker) -> None:
        self.worker = worker
        worker.num_places += 1

    def leave(self) -> None:
        if self.worker is not None:
            self.worker.num_places -= 1


@final
class _Request:
    """A request that a worker has not answered yet."""

    def __init__(self, what: str, answering: Answering | None, loop: asyncio.AbstractEventLoop | None) -> None:
        """Create a request. `loop` is the caller's event loop, in which `answering` runs."""
        self.what = what
        self.answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._answering, self._loop = answering, loop
        self._answers: list[Future[Json]] = []

    def ask_back(self, question: Mapping[str, Json], done: Callable[[Future[Json]], object]) -> None:
        assert self._answering is not None, "only code that has a session requests its turns"
        assert self._loop is not None
        answer = asyncio.run_coroutine_threadsafe(self._answering(question), self._loop)
        self._answers.append(answer)
        answer.add_done_callback(done)

    def give_up(self) -> None:
        """Cancel the pending session replies to the worker, because they are no longer needed."""
        for answer in self._answers:
            answer.cancel()


@final
class _Worker:
    """The trainer's side of one worker process. It belongs to the event loop of its pool."""

    def __init__(self, hello: bytes, beat_seconds: float, silence_seconds: float) -> None:
        """Start the process. Raises InfrastructureError if the process cannot be started."""
        ours, theirs = socket.socketpair()
        with theirs:
            program = [
                sys.executable,
                "-P",
                "-X",
                "faulthandler",
                "-m",
                "sparring.workers.process",
                str(theirs.fileno()),
            ]
            path = os.pathsep.join(path or os.getcwd() for path in sys.path)
            arguments, environment = wrap_in_keeper(program, {**os.environ, "PYTHONPATH": path})
            try:
                self._process = subprocess.Popen(
                    arguments,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise InfrastructureError(f"A worker process cannot be started: {error}.") from error
        self.num_places = 0
        self.is_over = False
        self._how = ""
        """How the process ended."""
        self._beat_seconds, self._silence_seconds = beat_seconds, silence_seconds
        self._silent_seconds, self._patience_seconds = 0.0, max(START_SECONDS, silence_seconds)
        self._numbers = itertools.count()
        self._requests: dict[int, _Request] = {}
        self._loop = asyncio.get_running_loop()
        self._connecting = asyncio.ensure_future(_connected(ours, hello))
        self._serving = asyncio.ensure_future(self._serve())

    async def ask(self, message: Mapping[str, Json], request: _Request) -> Mapping[str, Any]:
        number = next(self._numbers)
        content = _sendable({"ask": number, **message}, request.what)
        if self.is_over:
            await asyncio.shield(self._serving)
            raise self._lost(request, was_running=False)
        self._requests[number] = request
        try:
            await self._send(content)
            return await request.answer
        except asyncio.CancelledError:
            request.give_up()
            await self._send(frame({"cancel": number}))
            raise
        finally:
            del self._requests[number]

    async def aclose(self) -> None:
        self.is_over = True
        _, writer = await self._connecting
        writer.close()
        await self._serving

    async def _send(self, content: bytes) -> None:
        _, writer = await asyncio.shield(self._connecting)
        if not writer.is_closing():
            # The writer is not drained: a worker that does not read is soon replaced, and the caller waits for a reply
            # anyway.
            writer.write(content)

    async def _serve(self) -> None:
        """Monitor the process until it and all its descendants have exited."""
        reader, writer = await asyncio.shield(self._connecting)
        reading = asyncio.ensure_future(self._read(reader))
        is_silent = False
        while not (is_silent or reading.done() or self._process.poll() is not None):
            await asyncio.wait([reading], timeout=self._beat_seconds)
            # Silence is counted in beats instead of clock time, so that a pause of this process does not count as
            # silence.
            self._silent_seconds += self._beat_seconds
            is_silent = self._silent_seconds > self._patience_seconds
        is_closed, self.is_over = self.is_over, True
        reading.cancel()
        if is_silent:
            # The worker writes the stack of each thread to standard error.
            self._process.send_signal(signal.SIGABRT)
        has_ended = await asyncio.to_thread(self._end)
        writer.close()
        if is_silent:
            self._how = f"did not return to its event loop for {self._patience_seconds:g} s and was terminated"
        elif has_ended or is_closed:
            self._how = _describe_exit(self._process.returncode)
        else:
            self._how = (
                "closed its pipe to the trainer or wrote into it, which happens when code uses descriptors that it did "
                "not open, and was terminated"
            )
        if not is_closed:
            logger.warning("worker process %d %s; another process replaces it", self._process.pid, self._how)
        for request in self._requests.values():
            request.give_up()
            if not request.answer.done():
                request.answer.set_exception(self._lost(request, was_running=True))

    def _end(self) -> bool:
        """Return whether the process exited before it was killed."""
        try:
            self._process.wait(END_SECONDS)
            has_ended = True
        except subprocess.TimeoutExpired:
            has_ended = False
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_KEEPER_SECONDS)
        # This is needed if the keeper knows of no descendants, or does not answer.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return has_ended

    def _lost(self, request: _Request, *, was_running: bool) -> WorkerLost:
        return WorkerLost(
            f"{request.what} got no answer: worker process {self._process.pid} {self._how}. Its episodes are run "
            "again. Fix the code that ends the interpreter or does not return; make slow code async.",
            was_running=was_running,
        )

    async def _read(self, reader: asyncio.StreamReader) -> None:
        # The pipe ended, or user code wrote something other than a message into it.
        with suppress(EOFError, ConnectionError, ValueError):
            while True:
                message = await receive(reader)
                self._silent_seconds, self._patience_seconds = 0.0, self._silence_seconds
                self._heard(message)

    def _heard(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"answer": int(number)}:
                request = self._requests.get(number)
                if request is not None and not request.answer.done():
                    request.answer.set_result(message)
            case {"question": int(question), "of": int(number)}:
                # A cancelled request is not answered, and the code that sent the question has been cancelled.
                if (request := self._requests.get(number)) is not None:
                    request.ask_back(
                        message, lambda answer: self._loop.call_soon_threadsafe(self._tell, question, answer)
                    )
            case _:
                pass  # a beat: the worker has returned to its event loop

    def _tell(self, question: int, answer: Future[Json]) -> None:
        if not answer.cancelled():
            error = answer.exception()
            _, writer = self._connecting.result()
            writer.write(frame_outcome({"reply": question}, answer.result() if error is None else error))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _connected(ours: socket.socket, hello: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(sock=ours)
    writer.write(hello)
    return reader, writer


def _sendable(value: Json, what: str) -> bytes:
    """Return the value's frame. Raises UsageError for a value that cannot be sent."""
    try:
        return frame(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{what} cannot be sent to a worker process: {error}. Use values that JSON can represent, or set "
            "environment.workers = 0."
        ) from error


def _describe_exit(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"
