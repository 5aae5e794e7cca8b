"""A worker process on this machine, connected by a pair of sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import final

from sparring.errors import InfrastructureError
from sparring.runtime.keeper import wrap_in_keeper
from sparring.workers.worker import End

END_SECONDS = 2.0
"""Time for a worker to end, or to write its stack traces, before it is killed."""
END_KEEPER_SECONDS = 5.0
"""Time for a worker's keeper to kill the worker and all its descendants."""


@final
class ChildProcess:
    """A worker process under a keeper. It is a child of the calling thread: the kernel ends it when the thread ends."""

    def __init__(self, hello: bytes) -> None:
        """Start the process. `hello` is the first message to it. Raises InfrastructureError if the process cannot be
        started."""
        self._hello = hello
        self._socket, theirs = socket.socketpair()
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
                self._socket.close()
                raise InfrastructureError(f"A worker process cannot be started: {error}.") from error

    @property
    def name(self) -> str:
        return f"worker process {self._process.pid}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams to the process. Call this once."""
        reader, writer = await asyncio.open_connection(sock=self._socket)
        writer.write(self._hello)
        return reader, writer

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    async def end(self, *, is_silent: bool, grace_seconds: float = END_SECONDS) -> End | None:
        """Wait until the process and all its descendants have ended, and kill those that take longer than
        `grace_seconds`. A silent process first writes the stack of each thread to standard error.

        Return how the process ended, or None if it was killed.
        """
        return await asyncio.to_thread(self._end, is_silent, END_SECONDS if is_silent else grace_seconds)

    def _end(self, is_silent: bool, grace_seconds: float) -> End | None:
        if is_silent:
            self._process.send_signal(signal.SIGABRT)
        try:
            self._process.wait(grace_seconds)
            has_ended = True
        except subprocess.TimeoutExpired:
            has_ended = False
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_KEEPER_SECONDS)
        # This is needed if the keeper knows of no descendants, or does not answer.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        return End(_describe_exit(code)) if has_ended else None


def _describe_exit(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"
