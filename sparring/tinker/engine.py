"""An engine over a service that speaks the Tinker API."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from sparring.errors import ConstraintError, DataError, InfrastructureError, PolicyTimeout, ServiceError
from sparring.protocols import TokenCallback
from sparring.tinker.adapter import read_stored
from sparring.tinker.service import Sample, Sampler, Service, Trainer, sample_token
from sparring.types import Completion, EngineCapabilities, SampleRequest, StopReason, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    number: int
    fingerprint: str
    sampler: Sampler


@final
class TinkerEngine:
    """Samples with weights that a Tinker service has stored. Implements `protocols.Engine`.

    Weights come from a `TinkerLearner` of the same service, or are those of its base model. Each version is a sampler of its
    own on the service, so running turns keep their version. Log-probabilities are those at temperature 1.
    """

    def __init__(
        self,
        service: Service,
        *,
        weights: Weights | None,
        max_context_tokens: int,
        max_running: int = 64,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        """`decode` returns the text of ids, for answers that end with a text. Raises DataError if the weights did not come from a
        service, and ServiceError."""
        self._service, self._max_context, self._decode = service, max_context_tokens, decode
        self._slots = asyncio.Semaphore(max_running)
        self._is_closed = asyncio.Event()
        self._restored: list[Trainer] = []
        """Adapters that were restored only for sampling."""
        self._current = None if weights is None else self._open(weights, 0)
        self._owns_service = True

    def freeze(self, weights: Weights | None = None) -> TinkerEngine:
        frozen = object.__new__(TinkerEngine)
        frozen._service, frozen._max_context, frozen._decode = self._service, self._max_context, self._decode
        frozen._slots, frozen._is_closed, frozen._owns_service = self._slots, self._is_closed, False
        frozen._restored = self._restored
        frozen._current = None if weights is None else frozen._open(weights, 0)
        return frozen

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        """Sample a turn with the newest weights. `on_token` gets all ids at the end, because a service does not stream.

        Raises the errors of `protocols.Engine.sample`, and InfrastructureError if the service does not answer or the engine
        is closed.
        """
        if request.constraint is not None:
            raise ConstraintError("a Tinker service gets no grammars; request an answer without a grammar.")
        if request.stop_texts and self._decode is None:
            raise DataError("this engine cannot end an answer with a text; use stop ids only.")
        version = self._loaded
        sample = await self._finish(version, request)
        ids, logprobs, has_stopped = self._cut(sample, request)
        for token in ids if on_token is not None else ():
            assert on_token is not None
            on_token(token)
        return Completion(
            token_ids=ids,
            sampled_logprobs=logprobs,
            stop_reason=StopReason.STOP if has_stopped else StopReason.LENGTH,
            versions=((version.number, len(ids)),),
            fingerprint=version.fingerprint,
            num_computed_tokens=len(request.prompt_ids) + len(sample.token_ids),
        )

    async def _finish(self, version: _Version, request: SampleRequest) -> Sample:
        """Sample until the turn ends, its deadline passes, or the engine closes."""
        turn = asyncio.create_task(self._request(version, request))
        closing = asyncio.create_task(self._is_closed.wait())
        seconds = None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
        try:
            done, _ = await asyncio.wait({turn, closing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            if not turn.done():
                turn.cancel()
        if turn in done:
            try:
                return turn.result()
            except ServiceError as error:
                raise InfrastructureError(f"session {request.session_id}: {error}") from error
        if closing in done:
            raise InfrastructureError(f"session {request.session_id}: the engine was closed during the turn.")
        raise PolicyTimeout(f"session {request.session_id}: the turn did not end in time.")

    async def _request(self, version: _Version, request: SampleRequest) -> Sample:
        room = self._max_context - len(request.prompt_ids)
        async with self._slots:
            return await version.sampler.sample(
                request.prompt_ids,
                max_tokens=min(request.sampling.max_tokens, room),
                temperature=request.sampling.temperature,
                top_p=request.sampling.top_p,
                stop_ids=sorted(request.stop_ids),
                seed=request.seed,
            )

    def _cut(self, sample: Sample, request: SampleRequest) -> tuple[tuple[int, ...], tuple[float, ...], bool]:
        """Return ids and log-probabilities up to the first stop id or the token that completes a stop text, and whether the
        answer ends there. Raises InfrastructureError if a sampled id has no log-probability."""
        ids, logprobs = sample.token_ids, sample.logprobs
        if not ids or len(ids) != len(logprobs) or not all(map(math.isfinite, logprobs)):
            raise InfrastructureError(
                f"session {request.session_id}: the service returned no finite log-probability for each of {len(ids)} sampled "
                "ids."
            )
        for end in range(1, len(ids) + 1):
            text = self._decode(ids[:end]) if request.stop_texts and self._decode is not None else ""
            if ids[end - 1] in request.stop_ids or any(one in text for one in request.stop_texts):
                return ids[:end], logprobs[:end], True
        if sample.has_stopped:
            raise InfrastructureError(
                f"session {request.session_id}: the service ended an answer without one of the stop ids, so the sampled stop id "
                "is missing."
            )
        return ids, logprobs, False

    async def load_weights(self, weights: Weights, version: int) -> None:
        self._current = await asyncio.to_thread(self._open, weights, version)

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0, first: int = 1) -> list[float]:
        """Score ids. Raises DataError if the temperature is neither 0 nor 1, because a service scores at temperature 1."""
        if temperature not in (0.0, 1.0):
            raise DataError("a Tinker service scores ids at temperature 1 only; set sampling.temperature = 1.")
        if len(token_ids) <= first:
            return []
        found = await self._loaded.sampler.logprobs(token_ids)
        return found[first - 1 :]

    def open_session(self, session_id: str) -> None:
        """Do nothing: the service has no sessions of episodes."""

    def close_session(self, session_id: str) -> None:
        """Do nothing: the service has no sessions of episodes."""

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(
            reports_token_ids=True, holds_several_weights=True, takes_any_weights=False, scores_given_ids=True
        )

    @property
    def policy_version(self) -> int:
        return self._loaded.number

    @property
    def fingerprint(self) -> str:
        return self._loaded.fingerprint

    @property
    def max_context_tokens(self) -> int:
        return self._max_context

    def metrics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        if not self._owns_service:
            return
        self._is_closed.set()
        while self._restored:
            await asyncio.to_thread(self._restored.pop().close)
        await asyncio.to_thread(self._service.close)

    def _open(self, weights: Weights, version: int) -> _Version:
        """Open a sampler. Some services sample only with weights whose adapter they still hold; weights of a checkpoint are
        then restored from their state."""
        stored = read_stored(weights)
        sampler = self._service.create_sampler(stored.sampler)
        if stored.state is not None and not _can_sample(sampler):
            trainer = self._service.restore(stored.state, with_optimizer=False)
            self._restored.append(trainer)
            sampler = self._service.create_sampler(trainer.save_sampler(f"restored-{uuid.uuid4().hex[:8]}"))
        return _Version(number=version, fingerprint=weights.fingerprint, sampler=sampler)

    @property
    def _loaded(self) -> _Version:
        if self._current is None:
            raise InfrastructureError("this policy has no weights yet; call load_weights before the first turn.")
        return self._current


def _can_sample(sampler: Sampler) -> bool:
    try:
        sample_token(sampler, (0,))
    except ServiceError:
        return False
    return True
