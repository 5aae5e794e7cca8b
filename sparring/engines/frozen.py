"""A frozen policy that shares the engine of the policy in training."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, final

from sparring.engines.turns import Version
from sparring.errors import InfrastructureError
from sparring.protocols import TokenCallback
from sparring.types import Completion, EngineCapabilities, SampleRequest, Weights

if TYPE_CHECKING:
    from sparring.engines.torch_engine import TorchEngine


@final
class FrozenEngine:
    """An engine for fixed weights of the same model, such as a user simulator or an opponent. Implements
    `protocols.Engine`.

    Its turns share batches, the cache and deterministic rounds with the turns of the underlying engine. The underlying
    engine must outlive it.
    """

    def __init__(self, engine: TorchEngine, weights: Weights | None = None) -> None:
        """Create the engine. Without `weights`, `load_weights` must be called before the first turn."""
        self._engine = engine
        self._version: Version | None = None if weights is None else engine.keep(weights, 0)

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        """Sample a turn with the frozen weights, as `TorchEngine.sample` does."""
        return await self._engine.sample(request, on_token, frozen=self._loaded)

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Use these weights for all turns that start from now on. Turns report `version`, which must not decrease."""
        self._version = await asyncio.to_thread(self._engine.keep, weights, version)

    def freeze(self, weights: Weights | None = None) -> FrozenEngine:
        return FrozenEngine(self._engine, weights)

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0, first: int = 1) -> list[float]:
        return await self._engine.logprobs(token_ids, temperature, first, frozen=self._loaded)

    def open_session(self, session_id: str) -> None:
        self._engine.open_session(session_id)

    def close_session(self, session_id: str) -> None:
        self._engine.close_session(session_id)

    @property
    def capabilities(self) -> EngineCapabilities:
        """The capabilities of the underlying engine, except that a session's next turn uses the newest weights of
        `load_weights`."""
        return replace(self._engine.capabilities, pins_weights=False)

    @property
    def policy_version(self) -> int:
        return self._loaded.number

    @property
    def fingerprint(self) -> str:
        return self._loaded.fingerprint

    @property
    def max_context_tokens(self) -> int:
        return self._engine.max_context_tokens

    def metrics(self) -> dict[str, float]:
        """Return nothing: the underlying engine measures the load of both."""
        return {}

    async def close(self) -> None:
        """Do nothing: the owner of the underlying engine closes it."""

    @property
    def _loaded(self) -> Version:
        if self._version is None:
            raise InfrastructureError("this frozen policy has no weights yet; call load_weights before the first turn.")
        return self._version
