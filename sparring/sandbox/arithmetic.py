"""Arithmetic with a time limit: expressions are evaluated in workers, which are killed at the deadline."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import queue
import resource
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from sparring.errors import InfrastructureError
from sparring.sandbox.evaluator import ArithmeticProblem

DEFAULT_SECONDS = 1.0
NUM_WORKERS = 2
WORKER_MEMORY = 256 * 2**20


async def calculate(expression: str, *, seconds: float = DEFAULT_SECONDS) -> int | float:
    """Return the value of an arithmetic expression: numbers, + - * / // % **, parentheses, and functions such as sqrt.

        await calculate("2*(3+4)")  # 14

    Raises ArithmeticProblem, with a text for the expression's author, if the expression is invalid or reaches the time
    limit. Raises InfrastructureError if the worker itself fails.
    """
    return await asyncio.to_thread(_pool.ask, expression, seconds)


class _Worker:
    """One process that evaluates expressions. It is killed if an expression exceeds its time limit."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        script = Path(__file__).parent / "evaluator.py"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script)],
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise InfrastructureError(f"The worker for arithmetic cannot be started: {error}.") from error
        resource.prlimit(self._process.pid, resource.RLIMIT_AS, (WORKER_MEMORY, WORKER_MEMORY))

    def ask(self, expression: str, seconds: float) -> str | None:
        """Return the worker's answer (one line), or None if there is no answer in time. Raises OSError if the worker
        has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(expression).encode() + b"\n")
        self._process.stdin.flush()
        until = time.monotonic() + seconds
        answer = b""
        while not answer.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise BrokenPipeError("it has ended")
            answer += part
        return answer.decode()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


class _Pool:
    """The idle workers. A new worker is started when none is idle and there are fewer than NUM_WORKERS."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._slots = threading.BoundedSemaphore(NUM_WORKERS)

    def ask(self, expression: str, seconds: float) -> int | float:
        """Evaluate an expression in an idle worker.

        Raises ArithmeticProblem if the expression is invalid or too slow, and InfrastructureError if the worker fails.
        """
        with self._slots:
            worker = self._take()
            try:
                answer = worker.ask(expression, seconds)
            except OSError as error:
                worker.kill()
                raise InfrastructureError(
                    f"The worker for arithmetic failed on {expression!r:.80}: {error}."
                ) from error
            except BaseException:
                worker.kill()
                raise
            if answer is None:
                worker.kill()
                raise ArithmeticProblem(f"the expression did not end within {seconds:g} s")
            self._idle.put(worker)
        value = json.loads(answer[2:])
        if answer.startswith("!"):
            raise ArithmeticProblem(value)
        return value

    def close(self) -> None:
        """Terminate the workers of this process."""
        while not self._idle.empty():
            worker = self._idle.get()
            if worker.owner == os.getpid():
                worker.kill()

    def _take(self) -> _Worker:
        while True:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                return _Worker()
            # A fork inherits the pipes of its parent's workers, but does not own them.
            if worker.owner == os.getpid():
                return worker


_pool = _Pool()
atexit.register(_pool.close)
