"""Worker processes that serve a run on another machine: the side of `sparring worker --connect HOST:PORT`.

Each process has its own connection. This process opens it, gets the recipe's files, starts the worker process as a run
does for its own, and passes the messages on. The worker process does not know that its run is elsewhere.
"""

from __future__ import annotations

import asyncio
import platform
import random
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from sparring.environments.base import CLOSE_SECONDS
from sparring.errors import DataError, ServiceError, UsageError
from sparring.runtime.address import Address
from sparring.workers import handshake
from sparring.workers.child import END_SECONDS, ChildProcess
from sparring.workers.listener import SHIPPING_SECONDS
from sparring.workers.shipping import (
    MOST_BYTES,
    Listing,
    cached_folder,
    check_listing,
    count_bytes,
    differing_files,
    note_use,
    store,
)
from sparring.workers.wire import frame, prefix_length, receive_content, receive_object
from sparring.workers.worker import START_SECONDS, WROTE_INTO_PIPE

_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 10.0
_SENDING_SECONDS: Final = 5.0
_MOST_SILENT_SECONDS: Final = 3.0
"""A process sends something at least every second, unless its event loop does not respond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connecting:
    """The run that worker processes serve, and how."""

    address: Address
    key: bytes
    num_processes: int
    say: Callable[[str], object]
    """Shows a line of progress."""
    recipe: Path | None = None
    """A copy of the recipe's folder. The run sends its files if they are different."""
    wait_seconds: float = 600.0
    """Time without a run after which the command gives up."""
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class _Streams:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@final
class Connector:
    """Starts worker processes for a run, replaces those that end, and connects again when the run is resumed."""

    def __init__(self, connecting: Connecting) -> None:
        self._connecting = connecting
        self._num_connected = 0
        self._last_contact = time.monotonic()
        """The last time at which a process was connected."""
        self._is_waiting = False
        self._storing = asyncio.Lock()
        self._shown_folder: Path | None = None

    async def run(self) -> None:
        """Serve runs until cancelled.

        Raises ServiceError if a run refuses this machine, or if there is no run for too long. Raises UsageError and
        DataError for code that cannot be used here.
        """
        connecting = self._connecting
        processes = f"worker processes: {connecting.num_processes}, and a spare one for episodes that run alone"
        connecting.say(f"connecting to {connecting.address}; {processes}; Ctrl-C stops them")
        # Episodes that may end their process run alone in the spare one.
        kinds = [*([False] * connecting.num_processes), True]
        tasks = [asyncio.ensure_future(self._keep_serving(is_spare=kind)) for kind in kinds]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_serving(self, *, is_spare: bool) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._serve(is_spare)
                pause = _FIRST_PAUSE_SECONDS
            except (EOFError, OSError, ValueError, LookupError) as error:
                self._check_patience(error)
            # Jitter, so that processes that lost their connections together do not all connect at the same moment.
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _check_patience(self, error: Exception) -> None:
        """Raise ServiceError if there was no run for too long."""
        if self._num_connected:
            return
        where, waited = self._connecting.address, time.monotonic() - self._last_contact
        reason = f"{type(error).__name__} {error}".strip()
        if waited > self._connecting.wait_seconds:
            raise ServiceError(
                f"no run has accepted workers at {where} for {self._connecting.wait_seconds:g} s ({reason}). Check that the run "
                "listens there (environment.listen) and that this machine reaches it, and start the command again."
            )
        if not self._is_waiting:
            self._is_waiting = True
            self._connecting.say(f"no run at {where} yet ({reason}); trying for {self._connecting.wait_seconds:g} s")

    async def _serve(self, is_spare: bool) -> None:
        """Connect one worker process, and pass messages on until it ends or the connection is lost.

        Raises EOFError, OSError and TimeoutError if there is no run or the process does not start, and ValueError and
        LookupError if the run sends something unexpected. Raises ServiceError if it refuses this worker, UsageError if
        its code cannot be loaded here, DataError for files that must not be written, and DiskError for files that cannot
        be written.
        """
        connecting = self._connecting
        host, port = connecting.address
        try:
            async with asyncio.timeout(handshake.HANDSHAKE_SECONDS):
                reader, writer = await asyncio.open_connection(host, port, ssl=connecting.tls)
        except ssl.SSLCertVerificationError as error:
            raise ServiceError(
                f"the certificate of {connecting.address} was not accepted: {error.verify_message}. Give the authority that "
                "signed it as --tls-ca, and connect to a name that is in the certificate."
            ) from error
        try:
            handshake.notice_loss(writer)
            await handshake.present(reader, writer, connecting.key, str(connecting.address))
            async with asyncio.timeout(SHIPPING_SECONDS):
                hello = await self._prepare(reader, writer, is_spare)
            child, streams = await _start(hello)
            writer.write(frame({"process": child.name}))
            self._count(+1)
            try:
                how = await _pass_on(child, streams, _Streams(reader, writer))
            finally:
                self._count(-1)
            if how is not None:
                connecting.say(f"{child.name} {how}; another process replaces it")
        finally:
            writer.close()

    def _count(self, change: int) -> None:
        self._num_connected += change
        self._last_contact = time.monotonic()
        total = self._connecting.num_processes + 1
        if change > 0:
            self._is_waiting = False
            if self._num_connected == total:
                self._connecting.say(f"serving the run at {self._connecting.address}; all processes are connected")
        elif self._num_connected == 0:
            self._connecting.say(
                f"the run at {self._connecting.address} has ended or cannot be reached; waiting for it"
            )

    async def _prepare(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_spare: bool) -> bytes:
        """Exchange versions and files. Return the first message to the worker process."""
        version = {"sparring": handshake.installed_version(), "protocol": handshake.PROTOCOL}
        writer.write(frame({**version, "host": platform.node(), "is_spare": is_spare}))
        offered = _accepted(await receive_object(reader))
        listing: Listing = offered["files"]
        check_listing(listing)
        # Only the first process gets the files, and the others find them.
        async with self._storing:
            folder, has_files = await asyncio.to_thread(self._find_folder, listing)
            writer.write(frame({"has_files": has_files}))
            if not has_files:
                contents = await _receive_files(reader, listing)
                await asyncio.to_thread(store, listing, contents)
        self._show_folder(folder, 0 if has_files else len(listing), offered["left_out"])
        hello: dict[str, Any] = await receive_object(reader)
        return frame({**hello, "code": {**hello["code"], "folder": str(folder)}})

    def _find_folder(self, listing: Listing) -> tuple[Path, bool]:
        """Return the folder for the recipe's code, and whether it has all files. If not, the run must send them."""
        own = self._connecting.recipe
        if own is not None and not differing_files(listing, own):
            return own.absolute(), True
        folder = cached_folder(listing)
        has_files = not differing_files(listing, folder)
        if has_files:
            note_use(folder)
        return folder, has_files

    def _show_folder(self, folder: Path, num_sent: int, left_out: tuple[str, ...]) -> None:
        if folder == self._shown_folder:
            return
        self._shown_folder = folder
        origin = f"got {num_sent} files from the run" if num_sent else "has the files of the run"
        self._connecting.say(f"the recipe's code is in {folder} ({origin})")
        if self._connecting.recipe is not None and folder != self._connecting.recipe.absolute():
            self._connecting.say(
                f"{self._connecting.recipe} is not used, because its files differ from those of the run"
            )
        if left_out and self._connecting.recipe is None:
            self._connecting.say(
                f"too large to be sent: {', '.join(left_out)}. Code that reads them needs a copy of the folder "
                "(--recipe FOLDER)"
            )


def _accepted(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message. Raises ServiceError if it is a refusal."""
    if "refused" in message:
        raise ServiceError(f"the run refuses this worker: {message['refused']}")
    return message


async def _receive_files(reader: asyncio.StreamReader, listing: Listing) -> dict[str, bytes]:
    """Return the contents of all listed files. Raises ServiceError if the run cannot send one, and DataError if they are too
    large."""
    if count_bytes(listing) > MOST_BYTES:
        # The run refuses to send them, with what to do instead.
        _accepted(await receive_object(reader))
        raise DataError(f"the run sends more than {MOST_BYTES / 2**20:.0f} MiB, so nothing is written.")
    contents: dict[str, bytes] = {}
    for _ in listing:
        name = _accepted(await receive_object(reader))["sends"]
        contents[name] = await receive_content(reader)
    return contents


async def _start(hello: bytes) -> tuple[ChildProcess, _Streams]:
    """Start a worker process, and wait until it has loaded the code.

    Raises UsageError if it cannot load the code, and EOFError or TimeoutError if it ends or does not answer.
    """
    child = ChildProcess(hello)
    streams = _Streams(*await child.connect())
    try:
        async with asyncio.timeout(START_SECONDS):
            first = await receive_object(streams.reader)
        if not first["loaded"]:
            raise UsageError(f"the recipe's code cannot be loaded on this machine: {first['refusal']}")
    except BaseException:
        await _end(child, streams, is_silent=False, grace_seconds=END_SECONDS)
        raise
    return child, streams


async def _end(child: ChildProcess, streams: _Streams, *, is_silent: bool, grace_seconds: float) -> str:
    """Close the pipe of a process and wait for its end. Return how it ended."""
    streams.writer.close()
    ended = await asyncio.shield(child.end(is_silent=is_silent, grace_seconds=grace_seconds))
    return WROTE_INTO_PIPE if ended is None else ended.how


async def _pass_on(child: ChildProcess, streams: _Streams, run: _Streams) -> str | None:
    """Pass messages between a worker process and its run until one of them ends, and then end the process. Return how the
    process ended, or None if the run or its connection ended first."""
    last_message = time.monotonic()

    async def pass_up() -> None:
        nonlocal last_message
        # Whole frames, so that the last one can be followed by the report of how the process ended.
        with suppress(EOFError, OSError, ValueError):
            while True:
                content = await receive_content(streams.reader)
                last_message = time.monotonic()
                run.writer.write(prefix_length(content))
                await run.writer.drain()

    async def pass_down() -> None:
        with suppress(OSError):
            while content := await run.reader.read(2**16):
                # Not drained: a process that does not read must not hide the end of the connection.
                streams.writer.write(content)

    up, down = asyncio.ensure_future(pass_up()), asyncio.ensure_future(pass_down())
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        has_ended = up.done() and not down.done()
        for task in (up, down):
            task.cancel()
        is_silent = not has_ended and time.monotonic() - last_message > _MOST_SILENT_SECONDS
        # A process that still returns to its event loop may close its environments.
        grace_seconds = END_SECONDS if has_ended else CLOSE_SECONDS
        how = await _end(child, streams, is_silent=is_silent, grace_seconds=grace_seconds)
    if not has_ended:
        return None
    run.writer.write(frame({"ended": how}))
    with suppress(OSError):
        async with asyncio.timeout(_SENDING_SECONDS):
            await run.writer.drain()
    return how
