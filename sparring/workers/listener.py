"""The side of a run to which workers on other machines connect: `sparring worker --connect HOST:PORT`."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from sparring.errors import InfrastructureError, ServiceError
from sparring.run_folders.recipe_files import RecipeFiles
from sparring.runtime.address import Address
from sparring.runtime.logs import get_logger
from sparring.workers.handshake import HANDSHAKE_SECONDS, PROTOCOL, WrongKey, admit, installed_version, notice_loss
from sparring.workers.shipping import SentFiles
from sparring.workers.wire import frame, prefix_length, receive_object
from sparring.workers.worker import End, Link, Worker

logger = get_logger(__name__)

SHIPPING_SECONDS: Final = 300.0
"""Time limit for sending the recipe's files to a worker, and for its process to start."""
LINE_SECONDS: Final = 30.0
"""Time between two warnings that no worker is connected."""
MOST_HANDSHAKES: Final = 256
"""The most connections that have not proved yet that they have the key. With one more, the oldest is closed."""
_MOST_BYTES: Final = 2**20
"""The largest message of a worker that has not been added yet."""


Closing: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a run waits for workers, and what it sends to them."""

    address: Address
    key: bytes
    """The key that workers must have. It may be empty for a loopback address."""
    files: RecipeFiles
    """The recipe's files, which are sent to workers that do not have them."""
    timeout_seconds: float
    """Time without any worker after which requests fail."""
    announce: Callable[[str], object]
    tls: ssl.SSLContext | None = None
    launch: Callable[[int], Closing] | None = None
    """Starts workers that connect to a port, and returns what ends them. None: users start them."""


@final
class Listener:
    """Accepts workers, in the event loop of a pool."""

    def __init__(self, listening: Listening, hello: bytes, monitor: Callable[[Link], Worker]) -> None:
        """Create a listener that does not listen yet. `hello` is the frame with which a process on this machine starts."""
        self._listening, self._hello, self._monitor = listening, hello, monitor
        self._address = listening.address
        """Where it listens. The port is a free one if it was 0."""
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()
        self._files: SentFiles | None = None
        self._workers: dict[bool, list[Worker]] = {False: [], True: []}
        """The workers that have connected, by whether they are spare."""
        self._change = asyncio.Event()
        """Set, and replaced by another event, when a worker has connected."""
        self._waiting_since: dict[bool, float] = {}
        self._next_line = 0.0
        self._handshakes: set[asyncio.Task[None]] = set()
        """The connections that are not workers yet."""
        self._without_key: dict[asyncio.StreamWriter, None] = {}
        """Those that have not proved that they have the key, from the oldest to the newest."""
        self._has_warned = False
        """Whether too many connections without a key were reported."""
        self._end_workers: Closing | None = None
        self._refused: set[str] = set()
        """The hosts whose wrong key was reported."""

    async def start(self) -> None:
        """Listen. Starting twice is allowed.

        Raises ServiceError if the address is in use or not of this machine, and the errors of `SentFiles`.
        """
        async with self._starting:
            if self._server is not None:
                return
            self._files = await asyncio.to_thread(SentFiles, self._listening.files)
            host, port = self._listening.address
            try:
                tls = self._listening.tls
                seconds = None if tls is None else HANDSHAKE_SECONDS
                self._server = await asyncio.start_server(
                    self._accept, host, port, ssl=tls, ssl_handshake_timeout=seconds
                )
            except OSError as error:
                raise ServiceError(
                    f"environment.listen = '{self._listening.address}' cannot be listened on: {error}. {_advice(error, host)}"
                ) from error
            self._address = Address(host, self._server.sockets[0].getsockname()[1])
            if self._listening.launch is None:
                self._listening.announce(self._call_for_workers())
            else:
                self._end_workers = await asyncio.to_thread(self._listening.launch, self._address.port)

    async def aclose(self) -> None:
        """Stop listening, and close all workers."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._change.set()
        # The pool may start again, with another event loop.
        self._starting, self._change, self._waiting_since = asyncio.Lock(), asyncio.Event(), {}
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        workers = [one for kind in self._workers.values() for one in kind]
        self._workers = {False: [], True: []}
        await asyncio.gather(*(one.aclose() for one in workers if not one.is_over))
        if self._end_workers is not None:
            await asyncio.to_thread(self._end_workers)
            self._end_workers = None

    def list_workers(self, *, is_spare: bool = False) -> list[Worker]:
        """Return the workers that are connected. A spare one is for episodes that run alone."""
        self._workers[is_spare] = [one for one in self._workers[is_spare] if not one.is_over]
        return self._workers[is_spare]

    async def find(self, *, is_spare: bool) -> Worker:
        """Return the worker with the fewest places. A spare worker has no place. Wait until there is one.

        Raises InfrastructureError if no worker has connected within the time limit, which starts when the first caller
        waits, or if the listener is closed.
        """
        loop = asyncio.get_running_loop()
        while True:
            workers = self.list_workers(is_spare=is_spare)
            found = [one for one in workers if one.num_places == 0] if is_spare else workers
            if found:
                self._waiting_since.pop(is_spare, None)
                return min(found, key=lambda one: one.num_places)
            if self._server is None:
                raise InfrastructureError(f"the run no longer listens on {self._address}, because it ends.")
            since = self._waiting_since.setdefault(is_spare, loop.time())
            waited = loop.time() - since
            left = self._listening.timeout_seconds - waited
            if left <= 0:
                raise InfrastructureError(
                    f"no worker was connected to {self._address} for {self._listening.timeout_seconds:g} s "
                    f"(environment.listen_timeout). {self._advice()}"
                )
            self._warn(waited)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._change.wait(), min(left, LINE_SECONDS))

    def _warn(self, waited: float) -> None:
        now = asyncio.get_running_loop().time()
        if waited >= LINE_SECONDS / 2 and now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            logger.warning(
                "episodes wait for a worker at %s for %.0f s; they fail after %g s",
                self._address,
                waited,
                self._listening.timeout_seconds,
            )

    def _advice(self) -> str:
        if self._listening.launch is not None:
            return "The cluster that started the workers may be lost; look at their output in the run's folder."
        return "Start `sparring worker --connect` on a machine that reaches this address."

    def _call_for_workers(self) -> str:
        key = "SPARRING_API_KEY=KEY " if self._listening.key else ""
        tls = "" if self._listening.tls is None else " --tls-ca FILE"
        return (
            f"environments wait for workers at {self._address}; start workers on any machine that can reach it:\n"
            f"  {key}sparring worker --connect {self._address.reachable()}{tls}"
        )

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handshakes.add(task)
        self._make_room()
        self._without_key[writer] = None
        host = str((writer.get_extra_info("peername") or ("?",))[0])
        is_admitted = False
        try:
            notice_loss(writer)
            await admit(reader, writer, self._listening.key)
            self._without_key.pop(writer, None)
            async with asyncio.timeout(SHIPPING_SECONDS):
                is_admitted = await self._welcome(reader, writer, host)
        except WrongKey as error:
            if host not in self._refused and len(self._refused) < MOST_HANDSHAKES:
                self._refused.add(host)
                logger.warning("a connection from %s to %s was refused: %s", host, self._address, error)
        except asyncio.CancelledError:
            # The listener is closed. The server that started this task would report it as an error.
            logger.info("a connection from %s to %s was closed in its handshake", host, self._address)
        except (EOFError, OSError, ValueError, LookupError, TypeError) as error:
            logger.info("a connection from %s to %s has ended: %r", host, self._address, error)
        finally:
            self._handshakes.discard(task)
            self._without_key.pop(writer, None)
            if not is_admitted:
                writer.close()

    def _make_room(self) -> None:
        """Close the oldest connection without a key if there are too many. A worker proves within milliseconds that it has
        the key, so the oldest is none."""
        if len(self._without_key) < MOST_HANDSHAKES:
            return
        oldest = next(iter(self._without_key))
        del self._without_key[oldest]
        oldest.transport.abort()
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%d connections to %s have not sent a key; from now on, each further one closes the oldest of them. Check "
                "who can reach this address",
                MOST_HANDSHAKES,
                self._address,
            )

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> bool:
        """Send what a worker needs, and add it. Return False if the worker was refused."""
        assert self._files is not None
        hello = await receive_object(reader, most_bytes=_MOST_BYTES)
        if (refusal := _refusal(hello)) is not None:
            await _refuse(writer, host, refusal)
            return False
        writer.write(frame({"files": self._files.listing, "left_out": self._files.left_out}))
        if not (await receive_object(reader, most_bytes=_MOST_BYTES))["has_files"]:
            try:
                await _send(self._files, writer)
            except ServiceError as error:
                await _refuse(writer, host, str(error))
                return False
        writer.write(self._hello)
        process = str((await receive_object(reader, most_bytes=_MOST_BYTES))["process"])
        is_spare = bool(hello["is_spare"])
        worker = self._monitor(_Connection(f"{process!r} on {str(hello['host'])!r} ({host})", reader, writer))
        self._workers[is_spare].append(worker)
        self._waiting_since.pop(is_spare, None)
        self._change.set()
        self._change = asyncio.Event()
        return True


@final
class _Connection:
    """A worker process on another machine, where `sparring worker` starts and ends it."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self._reader, self._writer = reader, writer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return self._reader, self._writer

    def has_ended(self) -> bool:
        return False  # then the connection is closed, which the reader notices

    async def end(self, *, is_silent: bool) -> End | None:
        # Closing would wait for what was not sent yet.
        self._writer.transport.abort()
        if self._reader.at_eof() or self._reader.exception() is not None:
            return End("lost its connection to the run", is_of_code=False)
        return None


def _advice(error: OSError, host: str) -> str:
    """Return what to do if an address cannot be listened on."""
    match error.errno:
        case errno.EADDRINUSE:
            return "Choose another port, or end the process that uses it."
        case errno.EACCES:
            return "Choose a port that this user may use, such as one above 1023."
        case _:
            return (
                f"Check that {host!r} is an address or a name of this machine; 0.0.0.0 stands for all of its addresses."
            )


async def _send(files: SentFiles, writer: asyncio.StreamWriter) -> None:
    """Send all files. Raises ServiceError if they are too large or cannot be read, and OSError if the worker is gone."""
    files.check_size()
    for name in files.listing:
        content = await asyncio.to_thread(files.read, name)
        writer.write(frame({"sends": name}) + prefix_length(content))
        await writer.drain()


async def _refuse(writer: asyncio.StreamWriter, host: str, reason: str) -> None:
    logger.warning("a worker on %s was refused: %s", host, reason)
    writer.write(frame({"refused": reason}))
    await writer.drain()


def _refusal(hello: Mapping[str, Any]) -> str | None:
    """Return why a worker cannot serve the run, or None if it can."""
    theirs, ours = (hello.get("sparring"), hello.get("protocol")), (installed_version(), PROTOCOL)
    if theirs == ours:
        return None
    return (
        f"it has Sparring {theirs[0]} (protocol {theirs[1]}), but the run has Sparring {ours[0]} (protocol {ours[1]}). Install "
        "the same version on both machines."
    )
