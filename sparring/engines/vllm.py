"""An engine over one or several vLLM servers: token ids in, sampled ids and their log-probabilities out.

Each version of the weights is an adapter of its own on the servers, so turns that run keep theirs while the next version
is loaded. `engines.vllm_server` has the routes of one server; docs/vllm.md explains how to start one.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

from sparring.engines.vllm_server import Generation, Unanswered, VLLMServer
from sparring.errors import ConstraintError, InfrastructureError, PolicyTimeout, ServiceError
from sparring.models.adapter_files import AdapterShape, write_adapter
from sparring.protocols import TokenCallback
from sparring.types import Completion, EngineCapabilities, SampleRequest, StopReason, Weights

MAX_RETRIES = 7
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0


@dataclass(eq=False)
class _Version:
    """Weights that turns can be sampled with: an adapter folder, and its name on the servers."""

    number: int
    fingerprint: str
    name: str
    folder: Path
    num_turns: int = 0
    """The number of turns that run with these weights."""


@final
class VLLMEngine:
    """Samples with vLLM servers that serve the same base model. Implements `protocols.Engine`.

        engine = VLLMEngine(
            ["http://127.0.0.1:8000"], shape=AdapterShape(rank=16, alpha=64), folder=Path("adapters"), weights=weights
        )

    A session stays on the server with the fewest open sessions, whose cache has the session's earlier turns, and moves
    when the server fails. A turn that a server does not answer is sampled again on another one. The servers read the
    adapters from `folder`, so all of them need access to it.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        *,
        shape: AdapterShape,
        folder: Path,
        weights: Weights | None = None,
        api_key: str | None = None,
        max_running: int = 64,
        session_weights: Literal["latest", "pinned"] = "latest",
    ) -> None:
        """Connect to running servers, and load the weights as version 0. `max_running` limits the turns that run on
        one server at once.

        Raises ServiceError if a server does not answer, or lacks a setting that sampling needs.
        """
        servers = [VLLMServer(url, api_key=api_key, max_running=max_running) for url in base_urls]
        self._pool = _Pool(servers, shape, folder)
        self._current: _Version | None = None if weights is None else self._pool.write(weights, 0)
        self._is_pinned = session_weights == "pinned"
        self._pins: dict[str, _Version] = {}
        self._earlier: list[_Version] = []
        """Versions before the newest that a turn or a session may still use."""
        self._owns_servers = True

    def freeze(self, weights: Weights | None = None) -> VLLMEngine:
        frozen = object.__new__(VLLMEngine)
        frozen._pool = self._pool
        frozen._current = None if weights is None else self._pool.write(weights, 0)
        frozen._is_pinned, frozen._pins, frozen._earlier, frozen._owns_servers = False, {}, [], False
        return frozen

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        """Sample a turn with the newest weights, or with those of the session if they are pinned.

        Raises the errors of `protocols.Engine.sample`, and InfrastructureError if no server answers, or if an answer
        lacks log-probabilities.
        """
        if request.constraint is not None:
            raise ConstraintError(
                "a vLLM engine does not report how much probability a grammar removes; ask for free text."
            )
        if request.sampling.top_p < 1.0:
            raise ServiceError("a vLLM engine cannot report log-probabilities below top_p = 1; set sampling.top_p = 1.")
        version = self._version_of(request.session_id)
        generation = await self._pool.generate(version, request, on_token)
        return Completion(
            token_ids=generation.token_ids,
            sampled_logprobs=generation.logprobs,
            stop_reason=StopReason.LENGTH if generation.finish_reason == "length" else StopReason.STOP,
            versions=((version.number, len(generation.token_ids)),),
            fingerprint=version.fingerprint,
            num_computed_tokens=len(request.prompt_ids) - generation.num_cached + len(generation.token_ids),
        )

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Write the weights as an adapter, load it on every server that answers, and use it for new turns.

        Raises ServiceError if no server loads it.
        """
        loaded = await asyncio.to_thread(self._pool.write, weights, version)
        await self._pool.load(loaded)
        earlier = self._earlier if self._current is None else [*self._earlier, self._current]
        self._current = loaded
        is_used = {one: one.num_turns > 0 or one in self._pins.values() for one in earlier}
        self._earlier = [one for one in earlier if is_used[one]]
        for unused in (one for one in earlier if not is_used[one]):
            await self._pool.remove(unused)

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        return await self._pool.score(self._loaded, token_ids, temperature)

    def open_session(self, session_id: str) -> None:
        """Do nothing: a session gets its server with its first turn."""

    def close_session(self, session_id: str) -> None:
        self._pins.pop(session_id, None)
        self._pool.leave(session_id)

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(reports_token_ids=True, pins_weights=self._is_pinned, scores_given_ids=True)

    @property
    def policy_version(self) -> int:
        return self._loaded.number

    @property
    def fingerprint(self) -> str:
        return self._loaded.fingerprint

    @property
    def max_context_tokens(self) -> int:
        return self._pool.max_context_tokens

    def metrics(self) -> dict[str, float]:
        """Return the number of turns that were sampled again since the last call, and the share of servers that answer."""
        return self._pool.take_metrics() if self._owns_servers else {}

    async def close(self) -> None:
        """End running turns and close the connections. The servers keep running."""
        if self._owns_servers:
            await self._pool.close()

    @property
    def _loaded(self) -> _Version:
        if self._current is None:
            raise InfrastructureError("this policy has no weights yet; call load_weights before the first turn.")
        return self._current

    def _version_of(self, session_id: str) -> _Version:
        return self._pins.setdefault(session_id, self._loaded) if self._is_pinned else self._loaded


@final
class _Pool:
    """The servers, the adapters on them, and which session is where."""

    def __init__(self, servers: Sequence[VLLMServer], shape: AdapterShape, folder: Path) -> None:
        self._servers, self._shape, self._folder = tuple(servers), shape, folder
        self._homes: dict[str, VLLMServer] = {}
        self._written: set[_Version] = set()
        self._num_retried = 0
        self._is_closed = False
        self._rng = random.Random()
        self.max_context_tokens = min(server.max_context_tokens for server in servers)

    def write(self, weights: Weights, number: int) -> _Version:
        """Write an adapter folder, which is complete once it has its final name."""
        name = f"{self._folder.name}-{number}-{weights.fingerprint[:12]}-{self._rng.randrange(16**6):06x}"
        folder = self._folder.absolute() / name
        write_adapter(weights, self._shape, folder)
        version = _Version(number=number, fingerprint=weights.fingerprint, name=name, folder=folder)
        self._written.add(version)
        return version

    async def load(self, version: _Version) -> None:
        """Load an adapter on every server. A server that does not answer gets it before its next turn."""
        results = await asyncio.gather(
            *(server.load_adapter(version.name, version.folder) for server in self._servers), return_exceptions=True
        )
        failures = [one for one in results if isinstance(one, BaseException)]
        for failure in failures:
            if not isinstance(failure, Unanswered):
                raise failure
        if len(failures) == len(self._servers):
            raise ServiceError(
                f"no vLLM server loaded the weights: {failures[0]}. Start the servers, and resume the run."
            )

    async def remove(self, version: _Version) -> None:
        """Unload an adapter that nothing uses from every server, and delete its folder."""
        for server in self._servers:
            await server.unload_adapter(version.name)
        await asyncio.to_thread(shutil.rmtree, version.folder, ignore_errors=True)
        self._written.discard(version)

    async def generate(self, version: _Version, request: SampleRequest, on_token: TokenCallback | None) -> Generation:
        """Sample a turn on the session's server, and on another one if it fails before its first token."""
        room = self.max_context_tokens - len(request.prompt_ids)
        request = replace(
            request, sampling=replace(request.sampling, max_tokens=min(request.sampling.max_tokens, room))
        )
        seconds = None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
        problem = "all slots of the servers were taken"
        running: VLLMServer | None = None
        try:
            async with asyncio.timeout(seconds):
                for attempt in range(MAX_RETRIES + 1):
                    try:
                        async with self._turn(version, request.session_id) as running:
                            return await running.generate(version.name, request, on_token)
                    except Unanswered as failure:
                        problem, running = str(failure), None
                        self._num_retried += 1
                        self._homes.pop(request.session_id, None)
                        if self._is_closed:
                            break
                        await asyncio.sleep(self._pause(attempt))
        except TimeoutError:
            if running is not None and await running.is_healthy():
                raise PolicyTimeout(f"session {request.session_id}: the turn did not end in time.") from None
            problem = problem if running is None else f"{running.where} has stopped answering"
        raise InfrastructureError(f"session {request.session_id}: no vLLM server answered: {problem}.")

    @asynccontextmanager
    async def _turn(self, version: _Version, session_id: str) -> AsyncIterator[VLLMServer]:
        """Take a slot on the session's server, which has the adapter from then on."""
        version.num_turns += 1
        try:
            server = self._homes.get(session_id)
            if server is None or server.is_down:
                server = self._homes[session_id] = self._freest()
            async with server.slots:
                await server.load_adapter(version.name, version.folder)
                yield server
        finally:
            version.num_turns -= 1

    def _freest(self) -> VLLMServer:
        """Return the server with the fewest sessions of those that answered their last request, or else of all."""
        up = [one for one in self._servers if not one.is_down] or self._servers
        homes = list(self._homes.values())
        return min(up, key=homes.count)

    async def score(self, version: _Version, token_ids: Sequence[int], temperature: float) -> list[float]:
        """Raises ServiceError if no server answers, because nothing can be sampled then."""
        problem: Unanswered | None = None
        for attempt in range(MAX_RETRIES + 1):
            server = self._freest()
            try:
                await server.load_adapter(version.name, version.folder)
                return await server.score(version.name, token_ids, temperature)
            except Unanswered as failure:
                problem = failure
                await asyncio.sleep(self._pause(attempt))
        raise ServiceError(f"no vLLM server answers: {problem}. Start the servers, and resume the run.")

    def leave(self, session_id: str) -> None:
        self._homes.pop(session_id, None)

    def take_metrics(self) -> dict[str, float]:
        num_retried, self._num_retried = self._num_retried, 0
        up = sum(not one.is_down for one in self._servers) / len(self._servers)
        return {"engine/retried_turns": float(num_retried), "engine/servers_up": up}

    async def close(self) -> None:
        self._is_closed = True
        for server in self._servers:
            await server.close()
        for version in self._written:
            await asyncio.to_thread(shutil.rmtree, version.folder, ignore_errors=True)

    def _pause(self, attempt: int) -> float:
        return min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS) * self._rng.uniform(0.75, 1.0)
