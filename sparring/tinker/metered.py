"""Count the requests to a service and their tokens, as a service charges for them, in the run's `usage.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar, final

from sparring.errors import ServiceError
from sparring.metering.usage import count_request
from sparring.runtime.cancellable import Cancelled
from sparring.tinker.service import AdamStep, Pending, Row, Sample, Sampler, Service, Trainer
from sparring.types import Usage

Value = TypeVar("Value")


@final
class MeteredService:
    """A service whose requests are counted. Implements `service.Service`.

    Services charge for three kinds of tokens. Prompts and scored ids are read, answers are sampled, and the inputs of forward
    passes and of forward and backward passes are trained. Other requests have no tokens.
    """

    def __init__(self, service: Service, endpoint: str, *, scores_by_sampler: bool = False) -> None:
        """`endpoint` is `model@host`, whose prices are `MODEL:read`, `MODEL:sample` and `MODEL:train`. `scores_by_sampler` states
        whether the ids of a forward pass are read instead, because a sampler scores them."""
        self._service, self._endpoint, self._scores_by_sampler = service, endpoint, scores_by_sampler

    @property
    def name(self) -> str:
        return self._service.name

    def create(self, *, rank: int, seed: int) -> Trainer:
        return self._metered(lambda: self._service.create(rank=rank, seed=seed))

    def restore(self, path: str, *, with_optimizer: bool) -> Trainer:
        return self._metered(lambda: self._service.restore(path, with_optimizer=with_optimizer))

    def create_sampler(self, path: str | None) -> Sampler:
        return _Sampler(self._count(lambda: self._service.create_sampler(path)), self._endpoint)

    def download(self, path: str, folder: Path) -> None:
        self._count(lambda: self._service.download(path, folder))

    def close(self) -> None:
        self._service.close()

    def _metered(self, create: Callable[[], Trainer]) -> Trainer:
        return _Trainer(self._count(create), self._endpoint, scores_by_sampler=self._scores_by_sampler)

    def _count(self, request: Callable[[], Value]) -> Value:
        return _count(self._endpoint, request)


def _count(endpoint: str, request: Callable[[], Value], *, num_read: int = 0, num_trained: int | None = None) -> Value:
    """Make a request, and count it. A request that fails has no tokens."""
    try:
        found = request()
    except (ServiceError, Cancelled):
        count_request(endpoint, answered=False, usage=None)
        raise
    usage = Usage(num_prompt_tokens=num_read, num_sampled_tokens=0)
    count_request(endpoint, answered=True, usage=usage, num_trained=num_trained)
    return found


@final
class _Answer(Generic[Value]):
    """An answer that is counted when it arrives."""

    def __init__(
        self, pending: Pending[Value], endpoint: str, *, num_read: int = 0, num_trained: int | None = None
    ) -> None:
        self._pending, self._endpoint = pending, endpoint
        self._num_read, self._num_trained = num_read, num_trained

    def result(self) -> Value:
        return _count(self._endpoint, self._pending.result, num_read=self._num_read, num_trained=self._num_trained)


@final
class _Trainer:
    def __init__(self, trainer: Trainer, endpoint: str, *, scores_by_sampler: bool) -> None:
        self._trainer, self._endpoint, self._scores_by_sampler = trainer, endpoint, scores_by_sampler

    def forward(self, rows: Sequence[Row]) -> _Answer[list[list[float]]]:
        pending = self._trainer.forward(rows)
        if self._scores_by_sampler:
            return _Answer(pending, self._endpoint, num_read=sum(len(row.token_ids) for row in rows))
        return _Answer(pending, self._endpoint, num_trained=_num_inputs(rows))

    def forward_backward(
        self, rows: Sequence[Row], loss_fn: str, loss_config: Mapping[str, float] | None = None
    ) -> _Answer[list[list[float]]]:
        pending = self._trainer.forward_backward(rows, loss_fn, loss_config)
        return _Answer(pending, self._endpoint, num_trained=_num_inputs(rows))

    def optim_step(self, step: AdamStep) -> _Answer[dict[str, float]]:
        return _Answer(self._trainer.optim_step(step), self._endpoint)

    def save_state(self, name: str) -> str:
        return _count(self._endpoint, lambda: self._trainer.save_state(name))

    def save_sampler(self, name: str) -> str:
        return _count(self._endpoint, lambda: self._trainer.save_sampler(name))

    def close(self) -> None:
        self._trainer.close()


def _num_inputs(rows: Sequence[Row]) -> int:
    """Return the number of ids that a pass reads: those of each row without the last."""
    return sum(row.num_targets for row in rows)


@final
class _Sampler:
    def __init__(self, sampler: Sampler, endpoint: str) -> None:
        self._sampler, self._endpoint = sampler, endpoint

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        stop_ids: Sequence[int],
        seed: int,
    ) -> Sample:
        usage: Usage | None = None
        try:
            found = await self._sampler.sample(
                prompt_ids, max_tokens=max_tokens, temperature=temperature, top_p=top_p, stop_ids=stop_ids, seed=seed
            )
            usage = Usage(
                num_prompt_tokens=len(prompt_ids), num_sampled_tokens=len(found.token_ids) + found.num_dropped
            )
            return found
        finally:
            count_request(self._endpoint, answered=usage is not None, usage=usage)

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        usage: Usage | None = None
        try:
            found = await self._sampler.logprobs(token_ids)
            usage = Usage(num_prompt_tokens=len(token_ids), num_sampled_tokens=0)
            return found
        finally:
            count_request(self._endpoint, answered=usage is not None, usage=usage)
