"""The learner of a group: it deals each batch to several ranks, each in a process of its own, which train one model
together (`training.rank`)."""

from __future__ import annotations

import contextvars
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, final

import httpx

from sparring.errors import ServiceError
from sparring.protocols import LossConfig
from sparring.runtime.cancellable import Cancelled, guard_change, raise_if_cancelled
from sparring.runtime.logs import get_logger
from sparring.runtime.remote import NO_ANSWER
from sparring.training.packing import Share, deal
from sparring.training.remote import LOST_RANK, RESTART_ADVICE, RemoteLearner, RemoteState
from sparring.types import TrainingBatch, Weights

logger = get_logger(__name__)

Result = TypeVar("Result")

RETRY_SECONDS = 2.0
"""The time between two attempts to reach a lost rank."""
RANK_SECONDS = 300.0
"""How long a rank waits for the others in a collective operation. A closed connection ends it at once."""
FAILURE_SECONDS = 5.0
"""How long the computations of other ranks may still take after one has failed by itself."""
PATIENCE_SECONDS = 10.0
"""How long a rank may be unreachable before it counts as lost."""


class Processes(Protocol):
    """The processes of ranks that were started for a group."""

    def find_url(self, number: int) -> str:
        """Return the current address of a rank, which changes if it was started again on another machine."""
        ...

    def close(self) -> None:
        """End all of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of `forward_backward` since the last step."""

    batch: TrainingBatch
    loss_fn: str
    loss_config: LossConfig
    old_logprobs: Sequence[float] | None


@final
class GroupLearner:
    """Trains with several ranks, each in a process of its own. Implements `protocols.Learner`.

        learner = GroupLearner(["http://node1:8200", "http://node2:8200"])

    The trajectories of a batch are dealt to the ranks. Each rank computes the gradient of its share. Then the ranks add up
    their gradients, and take the same step; their fingerprints are compared. If a rank ends or stops answering, the others
    form a new group and compute the gradients since the last step again. Nothing is lost as long as one rank is alive. A rank
    that was started again at the same address gets the state of the others before the next step.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        api_key: str | None = None,
        min_ranks: int = 1,
        rank_seconds: float = RANK_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        processes: Processes | None = None,
    ) -> None:
        """Connect to running learners and form a group.

        A computation fails if fewer than `min_ranks` are left, and the lost ones do not return within `rank_seconds`. A rank
        waits `rank_seconds` for the others, and counts as lost if its server does not answer for `patience_seconds`.
        `processes` are closed with the learner. Raises ServiceError if a learner does not answer.
        """
        self._min_ranks, self._rank_seconds, self._processes = min_ranks, rank_seconds, processes
        self._connect = partial(RemoteLearner, api_key=api_key, patience_seconds=patience_seconds)
        self._pool = ThreadPoolExecutor(len(urls), thread_name_prefix="sparring-rank")
        self._ranks: list[RemoteLearner] = []
        self._lost: list[RemoteLearner] = []
        """Lost ranks, whose exported weights may still be in use."""
        self._returned = SimpleQueue[RemoteLearner]()
        """Lost ranks that were started again."""
        self._pending: list[_Call] = []
        self._lacks_gradients = False
        """Whether the gradients of `_pending` must be computed again, because a rank was lost."""
        self._needs_group = True
        self._is_closed = threading.Event()
        self._is_sharded = False
        """Whether each rank holds only a part of the trained weights."""
        try:
            for url in urls:
                self._ranks.append(self._connect(url))
            self._urls = [rank.base_url for rank in self._ranks]
            """The addresses of all ranks, also of the lost ones."""
            identities = self._retry(lambda: self._on_all(_identify))
            if len(set(identities)) > 1:
                shown = "; ".join(f"{rank.base_url}: {one}" for rank, one in zip(self._ranks, identities, strict=True))
                raise ServiceError(
                    f"the ranks of the learner do not train the same model ({shown}). Start all of them with the same recipe and "
                    "version of Sparring."
                )
        except BaseException:
            self.close()
            raise

    def forward_backward(
        self,
        batch: TrainingBatch,
        loss_fn: str,
        loss_config: LossConfig,
        old_logprobs: Sequence[float] | None = None,
    ) -> dict[str, float]:
        call = _Call(batch=batch, loss_fn=loss_fn, loss_config=loss_config, old_logprobs=old_logprobs)
        if not self._pending:
            self._take_back()

        def compute() -> dict[str, float]:
            self._restore_gradients()
            return self._add_gradient(call)

        try:
            metrics = self._retry(compute)
        except BaseException:
            self._forget_gradients()
            raise
        self._pending.append(call)
        return metrics | {"training/ranks": float(len(self._ranks))}

    def logprobs(self, batch: TrainingBatch) -> list[float]:
        return self._retry(lambda: self._in_order(batch, lambda rank, share: rank.logprobs(share)))

    def reference_logprobs(self, batch: TrainingBatch) -> list[float]:
        return self._retry(lambda: self._in_order(batch, lambda rank, share: rank.reference_logprobs(share)))

    def optim_step(self, learning_rate: float) -> dict[str, float]:
        def add_up() -> None:
            self._restore_gradients()
            self._on_all(lambda rank, _: rank.run("add_up_gradients"))

        self._retry(add_up)
        # From here on, each rank can take the step alone.
        try:
            with guard_change():
                steps = self._on_all(_step_of(learning_rate), is_cancellable=False, accepts_loss=True)
        finally:
            self._pending.clear()
        fingerprints = {fingerprint for _, fingerprint in steps if fingerprint}
        if len(fingerprints) > 1:
            raise ServiceError(
                f"after the step, the ranks have different weights ({', '.join(sorted(one[:12] for one in fingerprints))}). "
                "All ranks need the same recipe, versions and kind of device; resume the run from its last checkpoint."
            )
        return steps[0][0]

    def reset_optimizer(self) -> None:
        self._pending.clear()
        self._retry(lambda: self._on_all(lambda rank, _: rank.reset_optimizer()))
        self._lacks_gradients = False

    def export_weights(self) -> Weights:
        def export() -> Weights:
            self._on_all(lambda rank, _: rank.run("fingerprint"))  # rank 0 gathers sharded weights
            return self._call_first(RemoteLearner.export_weights)

        return self._retry(export)

    def load_weights(self, weights: Weights) -> None:
        self._pending.clear()
        self._retry(lambda: self._on_all(lambda rank, _: rank.load_weights(weights)))
        self._lacks_gradients = False

    def export_state(self) -> RemoteState:
        def export() -> RemoteState:
            self._on_all(lambda rank, _: rank.run("gather_state"))
            return self._call_first(RemoteLearner.export_state)

        return self._retry(export)

    def load_state(self, directory: Path) -> None:
        self._pending.clear()
        self._retry(lambda: self._on_all(lambda rank, _: rank.load_state(directory)))
        self._lacks_gradients = False

    @property
    def num_microbatches(self) -> int:
        return sum(rank.num_microbatches for rank in self._ranks)

    def close(self) -> None:
        """Close the connections, and end the processes that were started for the group."""
        self._is_closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        while not self._returned.empty():
            self._lost.append(self._returned.get())
        for rank in (*self._ranks, *self._lost):
            rank.close()
        if self._processes is not None:
            self._processes.close()

    def _add_gradient(self, call: _Call) -> dict[str, float]:
        shares = deal(call.batch, len(self._ranks))
        old = call.old_logprobs

        def compute(rank: RemoteLearner, share: Share) -> dict[str, float]:
            own = None if old is None else [old[place] for place in share.places]
            return rank.forward_backward(share.batch, call.loss_fn, call.loss_config, own)

        # Each rank returns the metrics of the whole batch.
        return self._on_all(compute, shares)[0]

    def _in_order(
        self, batch: TrainingBatch, compute: Callable[[RemoteLearner, TrainingBatch], list[float]]
    ) -> list[float]:
        """Return values of the trained tokens in the segment order of the whole batch."""
        shares = deal(batch, len(self._ranks))
        found = [0.0] * batch.num_trained_tokens
        parts = self._on_all(lambda rank, share: compute(rank, share.batch), shares)
        for share, values in zip(shares, parts, strict=True):
            for place, value in zip(share.places, values, strict=True):
                found[place] = value
        return found

    def _call_first(self, method: Callable[[RemoteLearner], Result]) -> Result:
        try:
            return method(self._ranks[0])
        except ServiceError as error:
            raise _RankLost(str(error)) from error

    def _restore_gradients(self) -> None:
        """Compute the gradients since the last step again if a rank was lost."""
        if not self._lacks_gradients:
            return
        self._on_all(lambda rank, _: rank.run("clear_gradients"))
        for call in self._pending:
            self._add_gradient(call)
        self._lacks_gradients = False

    def _forget_gradients(self) -> None:
        """Note that the ranks have cleared their gradients, or that some may have computed more than others."""
        self._pending.clear()
        self._lacks_gradients = True

    def _retry(self, compute: Callable[[], Result]) -> Result:
        """Return the result, after forming a new group each time a rank is lost, and once if none is, because a rank paused
        for too long. Raises ServiceError if too few are left."""
        may_repeat = not self._is_sharded
        while True:
            try:
                if self._needs_group:
                    self._form_group()
                return compute()
            except _RankLost as error:
                num_ranks = len(self._ranks)
                self._drop_lost_ranks(str(error), may_repeat=may_repeat)
                may_repeat = may_repeat and len(self._ranks) < num_ranks

    def _on_all(
        self,
        compute: Callable[[RemoteLearner, Any], Result],
        shares: Sequence[Any] | None = None,
        *,
        is_cancellable: bool = True,
        accepts_loss: bool = False,
    ) -> list[Result]:
        """Compute on all ranks at the same time. Raises the error of a rank, or _RankLost if a rank cannot be reached or has
        lost another. With `accepts_loss`, the results of the other ranks are returned instead."""
        futures: list[Future[Result]] = []
        for rank, share in zip(self._ranks, shares or [None] * len(self._ranks), strict=True):
            context = contextvars.copy_context() if is_cancellable else contextvars.Context()
            futures.append(self._pool.submit(context.run, compute, rank, share))
        self._wait_for(futures)
        errors = [error for future in futures if future.done() and (error := future.exception()) is not None]
        lost = [error for error in errors if isinstance(error, ServiceError)]
        for error in errors:
            if not isinstance(error, ServiceError | Cancelled):
                raise error
        if len(lost) < len(errors):
            raise next(error for error in errors if isinstance(error, Cancelled))
        lost.sort(key=lambda error: LOST_RANK in str(error))  # the cause first
        if lost and not (accepts_loss and len(lost) < len(futures)):
            raise _RankLost(str(lost[0]))
        if lost:
            self._drop_lost_ranks(str(lost[0]))
        return [future.result() for future in futures if future.exception() is None]

    def _wait_for(self, futures: Sequence[Future[Any]]) -> None:
        """Wait for the computations of all ranks. If one fails by itself, the others may wait for it in a collective
        operation, so they get only `FAILURE_SECONDS` more."""
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_EXCEPTION)
            if any(_failed_by_itself(rank, one) for rank, one in zip(self._ranks, futures, strict=True) if one in done):
                wait(waiting, FAILURE_SECONDS)
                return

    def _drop_lost_ranks(self, reason: str, *, may_repeat: bool = False) -> None:
        """Keep the ranks that answer. They form a new group before the next computation. Raises ServiceError if too few
        answer, or if all do, unless the computation may be repeated with all of them."""
        answers = [rank.is_alive() for rank in self._ranks]
        alive = [rank for rank, is_alive in zip(self._ranks, answers, strict=True) if is_alive]
        self._lost += [rank for rank, is_alive in zip(self._ranks, answers, strict=True) if not is_alive]
        lost = [rank.base_url for rank in self._ranks if rank not in alive]
        reason = reason.removesuffix(RESTART_ADVICE).removesuffix(".")
        if not lost and may_repeat and (LOST_RANK in reason or NO_ANSWER in reason):
            logger.warning("all %d ranks answer again, and repeat the computation: %s", len(alive), reason)
            self._needs_group = self._lacks_gradients = True
            return
        if not lost:
            raise ServiceError(
                f"a rank of the learner failed although all {len(alive)} ranks answer: {reason}. Resume the run from its last "
                "checkpoint."
            )
        if self._is_sharded:
            raise ServiceError(
                f"the learner has lost {', '.join(lost)}, and with it a part of the trained weights: {reason}. Start it again, "
                "and resume the run from its last checkpoint. An adapter would survive, because each rank has all of it."
            )
        self._ranks, self._needs_group, self._lacks_gradients = alive, True, True
        needed = max(1, self._min_ranks)
        if alive:
            goes_on = "goes on with" if len(alive) >= needed else f"waits, because it needs {needed} ranks and has"
            logger.warning("the learner has lost %s and %s %d ranks: %s", ", ".join(lost), goes_on, len(alive), reason)
        for url in lost:
            threading.Thread(target=self._reach, args=(url,), name="sparring-lost-rank", daemon=True).start()
        deadline = time.monotonic() + self._rank_seconds
        while alive and len(self._ranks) < needed and time.monotonic() < deadline:
            raise_if_cancelled()
            self._is_closed.wait(0.1)
            self._take_back()
        if len(self._ranks) < needed:
            raise ServiceError(
                f"the learner has lost {', '.join(lost)}, and {len(alive)} of at least {needed} ranks are left: {reason}. Start "
                "it again, and resume the run from its last checkpoint."
            )

    def _reach(self, url: str) -> None:
        """Wait until a lost rank answers, maybe at another address, or the group is closed."""
        number = self._urls.index(url)
        while not self._is_closed.wait(RETRY_SECONDS):
            with suppress(ServiceError):
                rank = self._connect(url if self._processes is None else self._processes.find_url(number))
                self._urls[number] = rank.base_url
                self._returned.put(rank)
                if self._is_closed.is_set():
                    rank.close()
                return

    def _take_back(self) -> None:
        """Give the state of this group to the ranks that were started again. They join it before the next computation."""
        while not self._returned.empty():
            rank = self._returned.get()
            try:
                if _identify(rank) != _identify(self._ranks[0]):
                    raise ServiceError("it does not train the same model")
                with tempfile.TemporaryDirectory(prefix="sparring-rank-") as folder:
                    self._ranks[0].export_state().write(Path(folder))
                    rank.load_state(Path(folder))
            except ServiceError as error:
                logger.warning("%s was started again, but cannot join the learner: %s", rank.base_url, error)
                rank.close()
                continue
            self._ranks.append(rank)
            self._needs_group = True
            logger.warning(
                "%s was started again, and the learner goes on with %d ranks", rank.base_url, len(self._ranks)
            )

    def _form_group(self) -> None:
        """Connect the ranks with each other. Raises _RankLost if one ends meanwhile."""
        first, seconds = self._ranks[0], self._rank_seconds
        size = len(self._ranks)
        try:
            port = first.run("open_group", size=size, timeout_seconds=seconds)
        except ServiceError as error:
            raise _RankLost(str(error)) from error
        host = httpx.URL(first.base_url).host
        numbers = {id(rank): number for number, rank in enumerate(self._ranks)}

        def join(rank: RemoteLearner, _: object) -> bool:
            place = {"host": host, "port": port, "rank": numbers[id(rank)], "size": size}
            return rank.run("join_group", **place, timeout_seconds=seconds)

        self._is_sharded = any(self._on_all(join))
        self._needs_group = False


class _RankLost(ServiceError):
    """A rank cannot be reached, or has lost the connection to another rank."""


def _identify(rank: RemoteLearner, _: object = None) -> str:
    return rank.run("identify")


def _failed_by_itself(rank: RemoteLearner, computation: Future[Any]) -> bool:
    """Return whether a computation has failed because of its rank, which still answers, and not because of another one."""
    error = computation.exception()
    is_of_others = isinstance(error, Cancelled) or LOST_RANK in str(error) or NO_ANSWER in str(error)
    return error is not None and not is_of_others and rank.is_alive()


def _step_of(learning_rate: float) -> Callable[[RemoteLearner, Any], tuple[dict[str, float], str]]:
    def step(rank: RemoteLearner, _: object) -> tuple[dict[str, float], str]:
        metrics = rank.optim_step(learning_rate)
        return metrics, rank.run("fingerprint")

    return step
