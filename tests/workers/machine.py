"""`sparring worker` as a process of its own, and pools that listen for it."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sparring.run_folders.recipe_files import list_files
from sparring.runtime.address import Address
from sparring.workers import Code, Listening, WorkerPool

ROOT = Path(__file__).parents[2]
KEY = "a-long-and-random-key"


class Announced:
    """The last line that a run showed, and the address in it."""

    def __init__(self) -> None:
        self.text = ""
        self._is_there = threading.Event()

    def __call__(self, text: str) -> None:
        self.text = text
        self._is_there.set()

    def wait_for_address(self) -> str:
        assert self._is_there.wait(30)
        return self.text.partition("--connect ")[2].split()[0]


def listening_pool(
    code: Code,
    announced: Announced,
    *,
    num_local: int = 0,
    silence_seconds: float = 60.0,
    timeout_seconds: float = 60.0,
    host: str = "127.0.0.1",
    port: int = 0,
    key: str = KEY,
    tls: ssl.SSLContext | None = None,
    runs_dir: Path = Path("runs"),
) -> WorkerPool:
    listening = Listening(
        address=Address(host, port),
        key=key.encode(),
        files=list_files(Path(code["folder"]) / "recipe.toml", runs_dir),
        timeout_seconds=timeout_seconds,
        announce=announced,
        tls=tls,
    )
    return WorkerPool(num_local, code, silence_seconds=silence_seconds, listening=listening)


class Machine:
    """A running `sparring worker`. `output` is what it has written."""

    def __init__(self, address: str, *arguments: str, cache: Path, variables: Mapping[str, str] | None = None) -> None:
        self.address = address
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sparring", "worker", "--connect", address, *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
                "SPARRING_API_KEY": KEY,
                "XDG_CACHE_HOME": str(cache),
                **(variables or {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.output += line

    def wait_for(self, text: str, *, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline, self.output
            assert self.process.poll() is None or text in self.output, self.output
            time.sleep(0.02)

    def wait(self, *, seconds: float = 60.0) -> int:
        """Return the exit code."""
        code = self.process.wait(seconds)
        self._reading.join(10)
        return code

    def stop(self) -> int:
        """Stop it as Ctrl-C does, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.wait()


@contextmanager
def machine(
    address: str, *arguments: str, cache: Path, variables: Mapping[str, str] | None = None
) -> Iterator[Machine]:
    """A machine that is stopped at the end of the block."""
    started = Machine(address, *arguments, cache=cache, variables=variables)
    try:
        yield started
    finally:
        started.stop()


@contextmanager
def connected_pool(
    code: Code, *arguments: str, cache: Path, silence_seconds: float = 60.0
) -> Iterator[tuple[WorkerPool, Machine]]:
    """A pool whose workers have all connected from another process."""
    announced = Announced()
    pool = listening_pool(code, announced, silence_seconds=silence_seconds)
    waiting = threading.Thread(target=lambda: asyncio.run(pool.wait_until_ready()))
    waiting.start()
    with machine(announced.wait_for_address(), *arguments, cache=cache) as started:
        waiting.join(60)
        started.wait_for("serving the run")
        yield pool, started
        asyncio.run(pool.aclose())
