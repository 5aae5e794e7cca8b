"""The trainer's side of a worker: requests to it, and the monitoring of its process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

from sparring.errors import UsageError, WorkerLost
from sparring.runtime.logs import get_logger
from sparring.types import Json
from sparring.workers.wire import frame, frame_outcome, receive

logger = get_logger(__name__)

Answering: TypeAlias = Callable[[Mapping[str, Json]], Coroutine[Any, Any, Json]]
"""A function that handles requests from code in a worker during a call: turns of the episode's session."""

START_SECONDS = 60.0
"""Time limit for a worker to import its code."""
CLOSE_SECONDS = 2.0
"""Time for a connection to close."""
WROTE_INTO_PIPE = (
    "closed its pipe to the trainer or wrote into it, which happens when code uses descriptors that it did not open, "
    "and was terminated"
)


_NUMBERS = itertools.count(1)
"""Numbers of worker processes, because a process that replaces another one may have its name."""


@dataclass(frozen=True, slots=True)
class End:
    """How a worker ended."""

    how: str
    is_of_code: bool = True
    """Whether the code in the worker may have ended it."""


class Link(Protocol):
    """How a worker process is reached and ended."""

    @property
    def name(self) -> str:
        """The process, for messages."""
        ...

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams to the process. This is called once."""
        ...

    def has_ended(self) -> bool:
        """Return whether the process is known to have ended."""
        ...

    async def end(self, *, is_silent: bool) -> End | None:
        """Wait until the process has ended, and end it if it takes too long. Return how it ended by itself, or None if it had to
        be ended. A process `is_silent` if it does not return to its event loop."""
        ...


@final
class Request:
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
class Worker:
    """The trainer's side of one worker process. It belongs to the event loop of its pool."""

    def __init__(self, link: Link, *, beat_seconds: float, silence_seconds: float) -> None:
        self._link, self._number = link, next(_NUMBERS)
        self.num_places = 0
        self.is_over = False
        self._end = End("")
        """How the process ended."""
        self._beat_seconds, self._silence_seconds = beat_seconds, silence_seconds
        self._silent_seconds, self._patience_seconds = 0.0, max(START_SECONDS, silence_seconds)
        self._numbers = itertools.count()
        self._requests: dict[int, Request] = {}
        self._reported: End | None = None
        """How the process ended, as its machine reported it."""
        self._loop = asyncio.get_running_loop()
        self._connecting = asyncio.ensure_future(link.connect())
        self._serving = asyncio.ensure_future(self._serve())

    async def ask(self, message: Mapping[str, Json], request: Request) -> Mapping[str, Any]:
        number = next(self._numbers)
        content = encode({"ask": number, **message}, request.what)
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
        # Closing waits until everything was sent, which never happens if the other machine is gone.
        await asyncio.wait([self._serving], timeout=CLOSE_SECONDS)
        if not self._serving.done():
            writer.transport.abort()
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
        while not (is_silent or reading.done() or self._link.has_ended()):
            await asyncio.wait([reading], timeout=self._beat_seconds)
            # Silence is counted in beats instead of clock time, so that a pause of this process does not count as
            # silence.
            self._silent_seconds += self._beat_seconds
            is_silent = self._silent_seconds > self._patience_seconds
        is_closed, self.is_over = self.is_over, True
        reading.cancel()
        seen = await self._link.end(is_silent=is_silent)
        writer.close()
        if is_silent:
            self._end = End(f"did not return to its event loop for {self._patience_seconds:g} s and was terminated")
        elif (reported := self._reported or seen) is not None:
            self._end = reported
        else:
            self._end = End("was ended by its run" if is_closed else WROTE_INTO_PIPE)
        if not is_closed:
            logger.warning("%s %s; its episodes are run again", self._link.name, self._end.how)
        for request in self._requests.values():
            request.give_up()
            if not request.answer.done():
                request.answer.set_exception(self._lost(request, was_running=True))

    def _lost(self, request: Request, *, was_running: bool) -> WorkerLost:
        advice = (
            "Fix the code that ends the interpreter or does not return; make slow code async."
            if self._end.is_of_code
            else "Check its machine, the output of `sparring worker` there, and the network."
        )
        return WorkerLost(
            f"{request.what} got no answer: {self._link.name} {self._end.how}. Its episodes are run again. {advice}",
            was_running=was_running and self._end.is_of_code,
            death=f"{self._link.name} {self._end.how} ({self._number})",
        )

    async def _read(self, reader: asyncio.StreamReader) -> None:
        # The pipe ended, or user code wrote something other than a message into it.
        with suppress(EOFError, OSError, ValueError):
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
            case {"ended": str(how)}:
                self._reported = End(how)
            case _:
                pass  # a beat: the worker has returned to its event loop

    def _tell(self, question: int, answer: Future[Json]) -> None:
        if not answer.cancelled():
            error = answer.exception()
            _, writer = self._connecting.result()
            writer.write(frame_outcome({"reply": question}, answer.result() if error is None else error))


def encode(value: Json, what: str) -> bytes:
    """Return the value's frame. Raises UsageError for a value that cannot be sent."""
    try:
        return frame(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{what} cannot be sent to a worker process: {error}. Use values that JSON can represent, or set "
            "environment.workers = 0."
        ) from error
