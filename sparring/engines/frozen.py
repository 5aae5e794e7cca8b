"""A policy that stays as it is, played by the engine of the one in training."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import final

from sparring.engines.torch_engine import TorchEngine
from sparring.engines.turns import Version
from sparring.errors import InfrastructureError
from sparring.protocols import TokenCallback
from sparring.types import Completion, SampleRequest, Weights


@final
class FrozenEngine:
    """Weights of the same model that no training changes: a user simulator, an opponent. Implements `protocols.Engine`.

    Its turns share batches, cache and deterministic rounds with those of the engine it is a part of, which outlives it.
    """

    def __init__(self, engine: TorchEngine, weights: Weights | None = None) -> None:
        """Without `weights`, `load_weights` has to come before the first turn."""
        self._engine = engine
        self._version: Version | None = None if weights is None else engine.freeze(weights, 0)

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        """As `TorchEngine.sample`."""
        return await self._engine.sample(request, on_token, frozen=self._loaded)

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Freeze these instead. `version` is told of its turns; it must not fall."""
        self._version = await asyncio.to_thread(self._engine.freeze, weights, version)

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        return await self._engine.logprobs(token_ids, temperature, frozen=self._loaded)

    def open_session(self, session_id: str) -> None:
        self._engine.open_session(session_id)

    def close_session(self, session_id: str) -> None:
        self._engine.close_session(session_id)

    @property
    def policy_version(self) -> int:
        return self._loaded.number

    @property
    def fingerprint(self) -> str:
        return self._loaded.fingerprint

    @property
    def max_context_tokens(self) -> int:
        return self._engine.max_context_tokens

    async def close(self) -> None:
        """The engine it is a part of is closed by whoever made that."""

    @property
    def _loaded(self) -> Version:
        if self._version is None:
            raise InfrastructureError("this frozen policy has no weights yet; call load_weights before it is asked.")
        return self._version
