"""The learner of one rank: several ranks compute the gradients of parts of a batch, and all take the same step.

Each rank has a whole copy of the model, or a part of each matrix (`models.sharded`). The ranks form a process group of torch
(gloo on the CPU, NCCL on GPUs), add up their gradients, and take the same optimizer step. The weights of a batch's tokens
already contain the reduction over the whole batch, so that the sum of the gradients of its parts is the gradient of the batch.
`training.group` leads the ranks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from sparring.errors import DataError, ServiceError
from sparring.protocols import LossConfig
from sparring.runtime.cancellable import Cancelled
from sparring.training.learner import TorchLearner, gradient_metrics
from sparring.training.remote import LOST_RANK
from sparring.training.state import AdamWState
from sparring.types import TrainingBatch, Weights

TCPStore: TypeAlias = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage] - it is documented


@final
class RankLearner:
    """Trains a policy as one rank of a group, or alone until it joins one. Implements `protocols.Learner`.

    A group is formed in two steps: rank 0 opens it (`open_group`), and then all ranks join it (`join_group`) at the same
    time. A rank can leave a group whose other ranks have ended by joining another one. `forward_backward` and
    `add_up_gradients` are collective: each rank must call them, and waits for the others. With sharded weights, so are all
    computations except `load_weights` and `load_state`.
    """

    def __init__(
        self, load: Callable[[], TorchLearner], *, shards_weights: bool = False, device_type: str | None = None
    ) -> None:
        """Create a rank with the learner that `load` returns.

        With `shards_weights`, the ranks of a group divide the weights, and each moves its part to a device of `device_type`
        (that of the learner by default). The learner is loaded again for each further group.
        """
        self._load, self._shards_weights = load, shards_weights
        self._learner = load()
        self._device_type = device_type or self._learner.device.type
        self._identity = f"Sparring {version('sparring')}, {self._learner.identify()}, shards_weights={shards_weights}"
        self._state: AdamWState | None = None
        """The state that was gathered from all ranks."""
        self._group: RankGroup | None = None
        self._store: TCPStore | None = None

    def open_group(self, size: int, timeout_seconds: float) -> int:
        """Listen for the ranks of a new group, and return the port."""
        self._leave()
        self._store = TCPStore(
            "0.0.0.0",
            0,
            size,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_seconds),
        )
        return self._store.port

    def join_group(self, host: str, port: int, rank: int, size: int, timeout_seconds: float) -> bool:
        """Join the group that rank 0 has opened at this address, and wait until all ranks have joined. Return whether each
        rank then holds only a part of the trained weights.

        Collective operations fail after `timeout_seconds`, or at once if the connection to another rank is closed. Raises
        ServiceError if the group is not complete by then.
        """
        store = self._store
        if rank:
            self._leave()
        elif store is None:
            raise ServiceError("rank 0 of a group must open it first.")
        timeout = timedelta(seconds=timeout_seconds)
        try:
            if store is None:
                store = TCPStore(host, port, size, is_master=False, wait_for_workers=False, timeout=timeout)
            self._group = RankGroup(store, rank, size, timeout, device_type=self._device_type)
        except RuntimeError as error:
            raise ServiceError(f"rank {rank} could not join the group of {size} at {host}:{port}: {error}") from error
        if self._shards_weights:
            self._shard(self._group)
        return self._learner.is_sharded

    def _shard(self, group: RankGroup) -> None:
        """Divide the weights among the ranks of a new group. An adapter keeps its state; other weights are those that are
        loaded."""
        if self._learner.has_shards:
            state = None if self._learner.is_sharded else self._learner.export_state()
            self._learner = self._load()
            if state is not None:
                with tempfile.TemporaryDirectory(prefix="sparring-rank-") as folder:
                    state.write(Path(folder))
                    self._learner.load_state(Path(folder))
        with self._report_loss():
            self._learner.shard(group.mesh(), group.agree)

    def forward_backward(
        self,
        batch: TrainingBatch,
        loss_fn: str,
        loss_config: LossConfig,
        old_logprobs: Sequence[float] | None = None,
    ) -> dict[str, float]:
        """Add the gradient of this rank's part of the batch. Return the metrics of the whole batch.

        If the computation fails on one rank, it fails on all of them, and all gradients are cleared.
        """
        if self._group is None:
            return self._learner.forward_backward(batch, loss_fn, loss_config, old_logprobs)
        gradient, failure = None, None
        try:
            with self._report_loss():
                gradient = self._learner.add_gradient(batch, loss_fn, loss_config, old_logprobs)
        except Exception as error:
            if self._learner.has_shards and not isinstance(error, DataError | Cancelled):
                raise  # the others wait in the pass that this rank did not finish, until their time is over
            failure = error
        found = self._group.exchange((gradient, None if failure is None else f"{type(failure).__name__}: {failure}"))
        failures = [text for _, text in found if text is not None]
        if failures:
            self._learner.clear_gradient()
            kind = DataError if failures[0].startswith("DataError") else ServiceError
            raise failure or kind(f"another rank could not compute its part of the batch: {failures[0]}")
        return gradient_metrics([one for one, _ in found if one is not None])

    def add_up_gradients(self) -> None:
        """Replace the gradients by their sum over all ranks."""
        if self._group is not None:
            self._group.add_up(self._learner.gradients())

    def clear_gradients(self) -> None:
        self._learner.clear_gradient()

    def fingerprint(self) -> str:
        """Return the fingerprint of the current weights, or "" if they are sharded and this is not rank 0, which gathers
        them."""
        return self.export_weights().fingerprint

    def gather_state(self) -> None:
        """Get ready for `export_state`, which rank 0 runs alone."""
        if self._learner.is_sharded:
            with self._report_loss():
                self._state = self._learner.export_state()

    def identify(self) -> str:
        """Return a text that is equal for ranks that may train together."""
        return self._identity

    def logprobs(self, batch: TrainingBatch) -> list[float]:
        with self._report_loss():
            return self._learner.logprobs(batch)

    def reference_logprobs(self, batch: TrainingBatch) -> list[float]:
        with self._report_loss():
            return self._learner.reference_logprobs(batch)

    def optim_step(self, learning_rate: float) -> dict[str, float]:
        with self._report_loss():
            return self._learner.optim_step(learning_rate)

    def reset_optimizer(self) -> None:
        self._learner.reset_optimizer()

    def export_weights(self) -> Weights:
        with self._report_loss():
            return self._learner.export_weights()

    def load_weights(self, weights: Weights) -> None:
        self._learner.load_weights(weights)

    def export_state(self) -> AdamWState:
        """Return a copy of the state. If it is sharded, this is the one that `gather_state` has gathered."""
        state, self._state = self._state, None
        return self._learner.export_state() if state is None else state

    def load_state(self, directory: Path) -> None:
        self._learner.load_state(directory)

    @property
    def num_microbatches(self) -> int:
        return self._learner.num_microbatches

    def close(self) -> None:
        self._leave()
        self._learner.close()

    @contextmanager
    def _report_loss(self) -> Iterator[None]:
        """Raise ServiceError if a collective operation on sharded weights fails."""
        try:
            yield
        except RuntimeError as error:
            if self._group is None or not self._shards_weights or not _is_of_connection(error):
                raise
            raise self._group.lost(error) from error

    def _leave(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._store = None


@final
class RankGroup:
    """The collective operations of the ranks that train together."""

    def __init__(self, store: TCPStore, rank: int, size: int, timeout: timedelta, *, device_type: str) -> None:
        self._rank, self._size, self._device_type = rank, size, device_type
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, None, timeout, size, rank, store)

    def mesh(self) -> DeviceMesh:
        """Return the devices of all ranks, for sharding."""
        return init_device_mesh(self._device_type, (self._size,))

    def agree(self, number: int) -> int:
        """Return the largest number of all ranks."""
        return max(self.exchange(number))

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks. The ranks get the same numbers, bit for bit."""
        if not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        try:
            dist.all_reduce(flat)
        except RuntimeError as error:
            raise self.lost(error) from error
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order. They are pickled."""
        found: list[Any] = [None] * self._size
        try:
            dist.all_gather_object(found, value)
        except RuntimeError as error:
            raise self.lost(error) from error
        return found

    def close(self) -> None:
        dist.destroy_process_group()

    def lost(self, error: RuntimeError) -> ServiceError:
        """Return the error for a failed collective operation."""
        return ServiceError(f"rank {self._rank} of {self._size} {LOST_RANK}: {str(error).splitlines()[0]}")


def _is_of_connection(error: RuntimeError) -> bool:
    """Return whether a collective operation has failed, and not the computation of this rank."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
