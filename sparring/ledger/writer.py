"""One thread that owns the SQLite connection and commits all queued jobs in one transaction."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar, final

from sparring.errors import ServiceError
from sparring.runtime.faults import fault_point

T = TypeVar("T")
Job: TypeAlias = tuple[Callable[[sqlite3.Connection], Any], "Future[Any]"]

_MAX_JOBS_PER_COMMIT = 1024


@final
class GroupCommitWriter:
    """Runs jobs in the order of `submit`; a job's future resolves after the transaction that holds it is on disk.

    A job that fails takes the writer down: its transaction is rolled back, its futures and all later ones fail,
    since an account with a hole in it is worse than a run that stops.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Take over a connection in autocommit mode, opened with `check_same_thread=False`; no other code may use it."""
        self._connection = connection
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._waiting: list[tuple[Future[Any], asyncio.Future[None]]] = []
        self._waiting_lock = threading.Lock()
        self.num_commits = 0
        """Transactions so far; far fewer than jobs when many sessions write at once."""
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queue a job. Raises ServiceError when an earlier one could not be written."""
        if self._failure is not None:
            raise ServiceError(
                f"The ledger stopped writing: {self._failure}. Nothing later was recorded. Make room or repair the disk, and "
                "resume the run."
            )
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # A cancelled waiter must not cancel the write.
        self._jobs.put((job, future))
        return future

    async def committed(self, future: Future[T]) -> T:
        """The result of a job's future. All who wait for one commit are woken by one call: with `asyncio.wrap_future` each
        would take a system call of the writer's, which gives the interpreter lock up every time."""
        with self._waiting_lock:
            waiter = None if future.done() else asyncio.get_running_loop().create_future()
            if waiter is not None:
                self._waiting.append((future, waiter))
        if waiter is not None:
            await waiter
        return future.result()

    def close(self) -> None:
        """Write what is queued, then close the file. Raises ServiceError when something could not be written."""
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()
        if self._failure is not None:
            raise ServiceError(
                f"The ledger stopped writing: {self._failure}. Make room or repair the disk, and resume the run."
            ) from self._failure

    def _run(self) -> None:
        """Run jobs until the None that `close` queues."""
        is_open = True
        while is_open:
            batch = [self._jobs.get()]
            while batch[-1] is not None and len(batch) < _MAX_JOBS_PER_COMMIT and not self._jobs.empty():
                batch.append(self._jobs.get())
            is_open = batch[-1] is not None
            self._commit([job for job in batch if job is not None])
            self._wake()

    def _commit(self, batch: list[Job]) -> None:
        if not batch:
            return
        try:
            if self._failure is not None:
                raise self._failure
            # Takes the write lock now: a later upgrade from reading would fail at once when another process wrote meanwhile.
            self._connection.execute("BEGIN IMMEDIATE")
            results = [job(self._connection) for job, _ in batch]
            fault_point("ledger.committing")
            self._connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 (every waiter needs an answer)
            self._failure = error
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            for _, future in batch:
                future.set_exception(
                    ServiceError(
                        f"The ledger could not be written: {error}. Make room or repair the disk, and resume the run."
                    )
                )
            return
        self.num_commits += 1
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)

    def _wake(self) -> None:
        """Wake the event loops that wait for committed jobs."""
        with self._waiting_lock:
            over = [waiter for future, waiter in self._waiting if future.done()]
            self._waiting = [entry for entry in self._waiting if not entry[0].done()]
        for loop in {waiter.get_loop() for waiter in over}:
            with suppress(RuntimeError):  # a closed loop has no waiters
                loop.call_soon_threadsafe(_settle, [waiter for waiter in over if waiter.get_loop() is loop])


def _settle(waiters: Sequence[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
