"""Run servers as processes on this machine: start them, wait until they answer, restart those that end, and stop them."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

import httpx

from sparring.errors import ServiceError
from sparring.runtime import interrupts
from sparring.runtime.keeper import wrap_in_keeper
from sparring.runtime.logs import get_logger
from sparring.runtime.private_files import open_private

if TYPE_CHECKING:
    from sparring.runtime.launcher import Server

logger = get_logger(__name__)

ANNOUNCE_SECONDS = 15.0
"""The time between two lines that report how long the start has taken."""
MAX_RESTARTS = 5
"""How many times in a row a server is started again."""
STABLE_SECONDS = 600.0
"""A server that ran for this long starts the count of restarts anew."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """A server that is to be started."""

    name: str
    """What kind of server it is, for messages."""
    command: tuple[str, ...]
    variables: Mapping[str, str]
    """Environment variables."""
    ready_path: str = "/health"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The server is ready when a request for `ready_path` with these headers gets status 200."""
    has_address: bool = True
    """Whether the command gets two more options, `--host` and `--port`."""


@final
class ServerProcess:
    """A server that runs as a process on this machine, and never longer than this process. Its output is appended to a file.
    Implements `runtime.launcher.Server`."""

    def __init__(self, spec: ServerSpec, log: Path, *, host: str = "127.0.0.1", port: int | None = None) -> None:
        """Start a server at a port, or at a free one."""
        port = port or _find_free_port()
        self.name, self.url, self.log, self.num_restarts = spec.name, f"http://{host}:{port}", log, 0
        self._command = [*spec.command, *(("--host", host, "--port", str(port)) if spec.has_address else ())]
        self._variables = spec.variables
        self._is_ready = partial(answers, f"{self.url}{spec.ready_path}", spec.headers)
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        """Held while the process starts or stops, so that no process starts after `stop`."""
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return start_in_keeper(self._command, {**os.environ, **self._variables}, self.log)

    @property
    def process_id(self) -> int:
        return self._process.pid

    def find_url(self) -> str:
        return self.url

    def exit_code(self) -> int | None:
        return self._process.poll()

    def is_ready(self) -> bool:
        return self._is_ready()

    def restart_when_it_ends(self) -> None:
        """From now on, start the process again when it ends, at most `MAX_RESTARTS` times in a row."""
        threading.Thread(target=self._watch, name=f"sparring-{self.log.stem}", daemon=True).start()

    def _watch(self) -> None:
        num_in_a_row = 0
        while not self._is_stopping.is_set():
            start_time = time.monotonic()
            code = self._process.wait()
            if self._is_stopping.is_set():
                return
            num_in_a_row = 0 if time.monotonic() - start_time > STABLE_SECONDS else num_in_a_row
            if num_in_a_row == MAX_RESTARTS:
                logger.error("%s ended %d times and is not started again; see %s", self.url, MAX_RESTARTS + 1, self.log)
                return
            pause = min(_FIRST_PAUSE_SECONDS * 2**num_in_a_row, _LONGEST_PAUSE_SECONDS)
            logger.warning(
                "the %s %s ended with exit code %d and is started again; see %s", self.name, self.url, code, self.log
            )
            num_in_a_row += 1
            self._is_stopping.wait(pause)
            with self._lock:
                if not self._is_stopping.is_set():
                    self._process = self._start()
                    self.num_restarts += 1

    def stop(self) -> None:
        """End the process with its child processes."""
        with self._lock:
            self._is_stopping.set()
            process = self._process
        process.terminate()  # the keeper then kills the server and all processes of it
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def start_in_keeper(command: Sequence[str], variables: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program under a keeper, and return the keeper. The output is appended to a file.

    The program ends with the thread that starts it. Raises OSError if the file cannot be written.
    """
    arguments, variables = wrap_in_keeper(command, variables)
    with open_private(log, "ab") as output:
        return subprocess.Popen(
            arguments,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_until_ready(
    servers: Sequence[Server], what_for: str, announce: Callable[[str], object], *, seconds: float
) -> None:
    """Wait until all servers answer. Raises ServiceError if one ends first, or does not answer within `seconds`."""
    name = servers[0].name
    what = f"{len(servers)} {name}{'s' if len(servers) > 1 else ''}"
    announce(f"starting {what} {what_for}; the output is in {servers[0].log.parent}")
    start_time = time.monotonic()
    next_line = start_time + ANNOUNCE_SECONDS
    waiting = list(servers)
    while waiting := [one for one in waiting if not one.is_ready()]:
        interrupts.raise_if_stopping()
        now = time.monotonic()
        for one in waiting:
            if (code := one.exit_code()) is not None:
                raise ServiceError(
                    f"a {name} ended with exit code {code} while it started. The end of {one.log}:\n"
                    f"{find_cause(one.log)}\nFix the cause, and start the run again."
                )
        if now - start_time > seconds:
            raise ServiceError(
                f"a {name} did not answer within {seconds:.0f} seconds. Its output is in {waiting[0].log}."
            )
        if now > next_line:
            announce(f"waiting for {what}: {now - start_time:.0f} s")
            next_line = now + ANNOUNCE_SECONDS
        time.sleep(_POLL_SECONDS)
    announce(f"{what} started in {time.monotonic() - start_time:.0f} s")


def answers(url: str, headers: Mapping[str, str]) -> bool:
    """Return whether a request gets status 200."""
    try:
        return httpx.get(url, headers=headers, timeout=5.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def find_cause(log: Path) -> str:
    """Return the lines of a log that state the cause of a failure, or else its last lines."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    errors = [line for line in lines if "Error" in line]
    return "\n".join((errors or lines)[-5:])


def list_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [one for one in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if one]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return []  # vLLM then chooses
    # Other lines name the parts of a divided GPU (MIG).
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


def _find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
