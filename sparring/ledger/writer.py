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
    """Runs jobs in the order of `submit`. The future of a job is resolved once the job's transaction is on disk.

    If a job fails, the writer stops. The transaction is rolled back, and all its futures and all later futures fail. A
    stopped run is better than a ledger with gaps.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Take over a connection in autocommit mode that was opened with `check_same_thread=False`.

        No other code may use the connection.
        """
        self._connection = connection
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._waiting: list[tuple[Future[Any], asyncio.Future[None]]] = []
        self._waiting_lock = threading.Lock()
        self.num_commits = 0
        """Number of transactions so far. There are far fewer transactions than jobs if many sessions write at once."""
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queue a job. Raises ServiceError if an earlier job could not be written."""
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
        """Return the result of a job's future.

        One call wakes all tasks that wait for a commit. With `asyncio.wrap_future`, the writer would make one system
        call per task and release the interpreter lock each time.
        """
        with self._waiting_lock:
            waiter = None if future.done() else asyncio.get_running_loop().create_future()
            if waiter is not None:
                self._waiting.append((future, waiter))
        if waiter is not None:
            await waiter
        return future.result()

    def close(self) -> None:
        """Write the queued jobs, then close the file. Raises ServiceError if a job could not be written."""
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
            # Take the write lock now. A later upgrade from a read lock would fail at once if another process wrote in
            # between.
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
