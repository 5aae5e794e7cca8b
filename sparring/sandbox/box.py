"""Sandboxes in which isolated programs run, and the protocol for communication with a sandbox's first process."""

from __future__ import annotations

import asyncio
import marshal
import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from sparring.errors import InfrastructureError, UsageError
from sparring.sandbox.backends import MIB
from sparring.sandbox.limits import Collected, Ended, Execution, Limits, end_of_programs
from sparring.sandbox.processes import Started, spawner

if TYPE_CHECKING:
    from sparring.sandbox.sandbox import Sandbox

Content: TypeAlias = str | bytes
T = TypeVar("T")

GRACE_SECONDS = 0.8
"""The time after a deadline, in seconds, in which the first process may still report before the whole sandbox is
killed."""
START_SECONDS = 30.0
MAX_NAME = 512
MAX_PARTS = 16
"""Limits of a collected file's name, in characters and folders. The name of a written file may be twice as long, so that a
collected file can be written again below another folder."""
_LARGEST_FRAME = 1 << 20


class _NotTrusted(ConnectionError):
    """Raised when the first process sends an invalid message."""


class _BoxLost(Exception):
    """Raised when the sandbox ended or hung after a program had run in it. The program is the cause."""


class Box:
    """The sandbox in which the programs of one episode run.

    Its scratch folder is the working directory of each program, and exists until the sandbox is closed. Processes do
    not outlive the execution that started them. Operations run one at a time.
    """

    def __init__(self, sandbox: Sandbox, files: Mapping[str, Content]) -> None:
        self._sandbox = sandbox
        self._files = _checked(files)
        self._started: Started | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._lock = asyncio.Lock()
        self._has_run = False
        """True after a program was started in the current sandbox. From then on, the program counts as the cause of any
        failure."""
        self._is_closed = False

    @property
    def limits(self) -> Limits:
        """The limits of this sandbox."""
        return self._sandbox.limits

    async def open(self) -> None:
        """Start the first process and write the first files."""
        backend, setup = self._sandbox.backend, self._sandbox.setup
        self._started = await _kept(lambda: spawner.start(backend, setup), spawner.stop)
        self._has_run = False
        try:
            self._reader, self._writer = await asyncio.open_connection(sock=self._started.channel, limit=_LARGEST_FRAME)
            async with asyncio.timeout(START_SECONDS):
                await self._expect_ready()
            self._refuse(await self._put(self._files))
        except BaseException as error:
            output = await self._read_errors()
            await _finish(self._destroy())
            if isinstance(error, TimeoutError | EOFError | OSError):
                raise InfrastructureError(f"The sandbox {backend.name} did not start: {error!r}; {output}.") from error
            raise

    async def run(self, argv: Sequence[str], *, stdin: Content = "", seconds: float | None = None) -> Execution:
        """Run a program until it ends or reaches a limit, and kill everything it started.

        `seconds` is the wall-clock limit, by default `limits.seconds`. A program that cannot be found or executed exits
        with 127. Raises InfrastructureError if the sandbox cannot be started or is killed from outside, but never
        because of what a program does.
        """
        async with self.start(argv, seconds=seconds) as program:
            await program.write(_as_bytes(stdin))
            await program.end_input()
            return await program.wait()

    @asynccontextmanager
    async def start(self, argv: Sequence[str], *, seconds: float | None = None) -> AsyncIterator[Program]:
        """Run a program and exchange lines with it while it runs."""
        argv = list(argv)
        if not argv or not all(isinstance(part, str) for part in argv):
            raise UsageError(f"A program and its arguments must be a nonempty list of strings, but are {argv!r:.80}.")
        async with self._lock:
            if self._is_closed:
                raise UsageError("This sandbox is closed; run programs inside `async with sandbox.session()`.")
            if self._started is None:
                await self.open()
            program = Program(self, seconds or self.limits.seconds)
            await program.start(argv)
            try:
                yield program
            finally:
                if program.result is None:
                    # The block ended before the program did, so the state of the sandbox is unknown.
                    await _finish(self._destroy())

    async def write(self, files: Mapping[str, Content]) -> None:
        """Write files into the scratch folder. Existing files with these names are replaced.

        If something that a program left behind prevents this (a folder of that name, a full disk), the sandbox is
        replaced first, and the program's files are lost. Raises UsageError if a name is not a plain path below the
        scratch folder, or if the files do not fit into an empty scratch folder.
        """
        checked = _checked(files)
        async with self._lock:
            had_run = self._has_run
            refused = await self._put(checked)
            if refused and had_run:
                await _finish(self._destroy())
                refused = await self._put(checked)
            self._refuse(refused)

    async def try_write(self, files: Mapping[str, Content]) -> dict[str, str]:
        """Write files whose names or contents come from a policy. Return the reasons why some files could not be
        written, keyed by file name."""
        problems = {name: _problem_with_name(name, 2) for name in files}
        refused = {name: problem for name, problem in problems.items() if problem is not None}
        async with self._lock:
            accepted = {name: _as_bytes(content) for name, content in files.items() if name not in refused}
            return refused | await self._put(accepted)

    async def collect(
        self, names: Sequence[str] | None = None, *, max_files: int = 256, max_bytes: int = 8 * MIB
    ) -> Collected:
        """Return regular files of the scratch folder, either the named files or all of them. Links are never followed.

        Rejected files are listed with the reason. If the whole folder cannot be read, it is listed as `.`. The content
        was written by programs, so it must never be trusted.
        """
        files: dict[str, bytes] = {}
        refused: dict[str, str] = {}
        wanted = None
        if names is not None:
            problems = {name: _problem_with_name(name) for name in names}
            wanted = [name for name, problem in problems.items() if problem is None][:max_files]
            refused = {name: problems[name] or "more files than may be collected" for name in problems.keys() - wanted}
        async with self._lock:
            request = {"names": wanted, "files": max_files, "size": max_bytes, "depth": MAX_PARTS}
            try:
                async with self._exchange():
                    self._send(b"C", marshal.dumps(request, 2))
                    await self._receive_files(wanted, max_files, max_bytes, files, refused)
            except _BoxLost as lost:
                missing = ["."] if wanted is None else [name for name in wanted if name not in files]
                refused |= dict.fromkeys(missing, str(lost))
        return Collected(files=files, refused=refused)

    async def close(self) -> None:
        """Kill everything in the sandbox, and remove it."""
        self._is_closed = True
        await _finish(self._destroy())

    async def _put(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Write files, and return the reasons for those that failed, keyed by file name."""
        refused = {}
        try:
            async with self._exchange():
                for name, content in files.items():
                    self._send(b"W", marshal.dumps((name, content), 2))
                    kind, reason = await self._receive()
                    if kind == b"N":
                        refused[name] = reason.decode(errors="replace")
        except _BoxLost as lost:
            return dict.fromkeys(files, str(lost))
        return refused

    def _refuse(self, refused: Mapping[str, str]) -> None:
        for name, reason in refused.items():
            raise UsageError(
                f"The file {name!r} cannot be written into the sandbox: {reason}; the scratch folder is limited to "
                f"{self.limits.disk_mib} MiB and {self.limits.files} files."
            )

    async def _receive_files(
        self,
        wanted: Sequence[str] | None,
        max_files: int,
        max_bytes: int,
        files: dict[str, bytes],
        refused: dict[str, str],
    ) -> None:
        left = max_bytes
        for _ in range(max_files + 1):
            kind, content = await self._receive()
            if kind == b".":
                return
            if kind == b"N":
                path, _, reason = content.partition(b"\0")
                refused[path.decode(errors="replace")] = reason.decode(errors="replace")
            elif kind == b"F" and len(content) > 8:
                (size,), raw = struct.unpack(">Q", content[:8]), content[8:]
                if size > left:
                    raise _NotTrusted("it sent more than was requested")
                left -= size
                parts = []
                while size:
                    kind, part = await self._receive()
                    size -= len(part)
                    if kind != b"D" or size < 0:
                        raise _NotTrusted("it sent a file that is not what was announced")
                    parts.append(part)
                name = raw.decode(errors="replace")
                problem = "is not a name in UTF-8" if name.encode() != raw else _problem_with_name(name)
                if problem is not None:
                    refused[name] = problem
                elif wanted is None or name in wanted:
                    files[name] = b"".join(parts)
            else:
                break
        raise _NotTrusted("it sent more than was requested")

    @asynccontextmanager
    async def _exchange(self) -> AsyncIterator[None]:
        """Exchange messages with the first process. Raises _BoxLost or InfrastructureError if this fails."""
        if self._is_closed:
            raise UsageError("This sandbox is closed; use it inside `async with sandbox.session()`.")
        if self._started is None:
            await self.open()
        try:
            async with asyncio.timeout(START_SECONDS):
                yield
        except (TimeoutError, EOFError, ConnectionError) as error:
            await self._lose(error)
            raise _BoxLost("the sandbox failed after a program had run in it") from error
        except BaseException:
            # An answer may still arrive, and would be mistaken for the answer to the next request.
            await _finish(self._destroy())
            raise

    async def _lose(self, error: BaseException) -> None:
        """Remove a sandbox that ended or hung.

        Raises InfrastructureError if no program in the sandbox can be the cause: no program has run, or the process
        outside the sandbox, which no program can reach, was killed.
        """
        is_memory = self._started is not None and self._started.group.num_memory_kills > 0
        output, had_run = await self._read_errors(), self._has_run
        status = await _finish(self._destroy(grace_seconds=1.0))
        if not had_run or (status is not None and status < 0 and not is_memory):
            raise InfrastructureError(
                f"A {self._sandbox.backend.name} sandbox ended by itself: {error!r}; {output}."
            ) from error

    def _send(self, kind: bytes, content: bytes = b"") -> None:
        assert self._writer is not None
        self._writer.write(struct.pack(">cI", kind, len(content)) + content)

    async def _drain(self) -> None:
        assert self._writer is not None
        await self._writer.drain()

    async def _receive(self) -> tuple[bytes, bytes]:
        assert self._reader is not None
        kind, size = struct.unpack(">cI", await self._reader.readexactly(5))
        if size > _LARGEST_FRAME:
            raise _NotTrusted("it announced more than it may send")
        return kind, await self._reader.readexactly(size)

    async def _expect_ready(self) -> None:
        kind, _ = await self._receive()
        if kind != b".":
            raise _NotTrusted(f"it answered its start with {kind!r}")

    async def _read_errors(self) -> str:
        """Return the back end's standard error, usually its last message."""
        started = self._started
        if started is None:
            return "it printed nothing"
        os.set_blocking(started.errors, False)
        with suppress(BlockingIOError):
            if output := os.read(started.errors, 4096):
                return f"it printed {output.decode(errors='replace').strip()!r}"
        return "it printed nothing"

    async def _destroy(self, grace_seconds: float = 0.0) -> int | None:
        """Kill and remove the sandbox. Return how its first process exited within the grace period, or None if it did
        not exit in time."""
        started, self._started = self._started, None
        if started is None:
            return None
        if self._writer is not None:
            # This does not wait for the output to be read: there is no reader any more.
            self._writer.transport.abort()
        return await asyncio.to_thread(spawner.stop, started, grace_seconds)


class Program:
    """A program that runs in a sandbox."""

    def __init__(self, box: Box, seconds: float) -> None:
        end = end_of_programs()
        self._box = box
        self._seconds = seconds if end is None else min(seconds, max(0.0, end - time.monotonic()))
        self._written = {b"O": bytearray(), b"e": bytearray()}
        self._read_until = 0
        self.result: Execution | None = None
        """The result of the program, or None while it runs."""

    async def start(self, argv: Sequence[str]) -> None:
        """Start the program."""
        box, limits = self._box, self._box.limits
        started = box._started
        assert started is not None
        self._kills_before = started.group.num_memory_kills
        self._deadline = asyncio.get_running_loop().time() + self._seconds + GRACE_SECONDS
        per_process = {
            "RLIMIT_AS": limits.memory_mib * MIB,
            "RLIMIT_NPROC": limits.processes,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_FSIZE": limits.disk_mib * MIB,
            "RLIMIT_CPU": int(self._seconds) + 1,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
        }
        request = {
            "argv": list(argv),
            "seconds": self._seconds,
            "output": limits.output_kib * 1024,
            "limits": per_process if box._sandbox.is_isolated else {},
        }
        self._is_first, box._has_run = not box._has_run, True
        box._send(b"S", marshal.dumps(request, 2))

    async def write(self, content: bytes) -> None:
        """Send input to the program. Input that the program does not read before it ends is dropped."""
        try:
            async with asyncio.timeout_at(self._deadline):
                for begin in range(0, len(content), _LARGEST_FRAME):
                    if self.result is None:
                        self._box._send(b"I", content[begin : begin + _LARGEST_FRAME])
                        await self._box._drain()
        except TimeoutError:
            await self._lose("deadline")
        except ConnectionError:
            pass  # `wait` handles the end of the sandbox

    async def end_input(self) -> None:
        """Close the program's standard input."""
        if self.result is None:
            self._box._send(b"E")

    async def read_line(self) -> bytes | None:
        """Return the next line of its standard output without the line end, or None if it ended without another
        line."""
        while True:
            written = self._written[b"O"]
            end = written.find(b"\n", self._read_until)
            if end >= 0:
                line = bytes(written[self._read_until : end])
                self._read_until = end + 1
                return line
            if self.result is not None:
                return None
            await self._next()

    async def wait(self) -> Execution:
        """Wait until the program has ended, and return the result."""
        while self.result is None:
            await self._next()
        return self.result

    async def kill(self) -> None:
        """Kill the program now, with the same result as at its deadline."""
        if self.result is None:
            self._box._send(b"K")

    async def _next(self) -> None:
        """Handle one frame.

        If the sandbox ends, or sends nothing by the deadline, it is removed as a whole, and the program counts as the
        cause.
        """
        box = self._box
        try:
            async with asyncio.timeout_at(self._deadline):
                kind, content = await box._receive()
            if kind == b"X":
                await self._finish(content)
        except TimeoutError:
            await self._lose("deadline")
        except (EOFError, ConnectionError) as error:
            if self._num_memory_kills > self._kills_before:
                await self._lose("memory")
            else:
                await box._lose(error)
                self._set_result("killed", 0, self._seconds, scratch_lost=True)
        else:
            if kind in self._written:
                if sum(map(len, self._written.values())) + len(content) > box.limits.output_kib * 1024:
                    await self._lose("output")
                else:
                    self._written[kind] += content

    async def _finish(self, content: bytes) -> None:
        if len(content) < 12:
            raise _NotTrusted("it reported an end without a status")
        code, seconds = struct.unpack(">id", content[:12])
        ended = content[12:].decode(errors="replace")
        if code == -9 and ended == "exit" and self._num_memory_kills > self._kills_before:
            ended = "memory"
        if ended == "unstarted" and self._is_first:
            self._box._has_run = False
        if ended not in ("exit", "deadline", "memory", "output", "files", "processes"):
            raise _NotTrusted(f"it reported the end {ended!r:.40}")
        if ended == "files":
            # The files still exist.
            await self._lose("files")
            return
        self._set_result(cast(Ended, ended), code, seconds, scratch_lost=False)

    @property
    def _num_memory_kills(self) -> int:
        started = self._box._started
        return 0 if started is None else started.group.num_memory_kills

    async def _lose(self, ended: Ended) -> None:
        """Destroy the sandbox. The program is the cause."""
        await _finish(self._box._destroy())
        self._set_result(ended, 0, self._seconds, scratch_lost=True)

    def _set_result(self, ended: Ended, code: int, seconds: float, *, scratch_lost: bool) -> None:
        texts = {kind: content.decode("utf-8", "replace") for kind, content in self._written.items()}
        self.result = Execution(
            exit_code=code if ended == "exit" else None,
            stdout=texts[b"O"],
            stderr=texts[b"e"],
            ended=ended,
            seconds=seconds,
            backend=self._box._sandbox.backend.name,
            scratch_lost=scratch_lost,
        )


async def _kept(make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Return the result of a blocking call. If the caller is cancelled, wait for the call to return and undo its
    effect, so that nothing is leaked."""
    making = asyncio.ensure_future(asyncio.to_thread(make))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        with suppress(InfrastructureError):
            await asyncio.to_thread(undo, await making)
        raise


async def _finish(closing: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine to end, even if the caller is cancelled."""
    task = asyncio.ensure_future(closing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(InfrastructureError):
            await task
        raise


def _problem_with_name(name: str, stretch: int = 1) -> str | None:
    """Return why a name is not a relative path of plain names, or None if it is one."""
    parts = name.split("/")
    if "\0" in name or not all(part not in ("", ".", "..") for part in parts):
        return "is not a plain relative path"
    if len(name) > stretch * MAX_NAME or len(parts) > stretch * MAX_PARTS:
        return f"is not a plain relative path of up to {stretch * MAX_NAME} characters and {stretch * MAX_PARTS} parts"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "is not a name in UTF-8"
    return None


def _checked(files: Mapping[str, Content]) -> dict[str, bytes]:
    """Return files with their contents as bytes. Raises UsageError for a name that is not a plain relative path."""
    for name in files:
        problem = _problem_with_name(name, 2)
        if problem is not None:
            raise UsageError(f"{name!r:.80} {problem}, so it cannot name a file in the scratch folder.")
    return {name: _as_bytes(content) for name, content in files.items()}


def _as_bytes(content: Content) -> bytes:
    """Encode text. Lone surrogates, which a model can write but UTF-8 cannot represent, become bytes that no reader
    accepts as text."""
    return content.encode(errors="surrogatepass") if isinstance(content, str) else content
