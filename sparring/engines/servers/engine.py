"""An engine over one or several vLLM or SGLang servers: token ids in, sampled ids and their log-probabilities out.

If an adapter is trained, each version of the weights is a separate adapter on the servers, so running turns keep their
version while the next one is loaded. If all weights are trained, a version replaces those of the model, and running turns
continue with it. `engines.servers.client` is the client of one server; docs/vllm.md explains how to start one.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal, final

from sparring.engines.servers.client import Generation, Mode, ServerClient, ServerKind, Unanswered
from sparring.engines.servers.processes import START_SECONDS, StartedServers
from sparring.engines.servers.recent_prompts import RecentPrompts
from sparring.engines.servers.vllm import VLLM
from sparring.errors import (
    ConstraintError,
    DataError,
    DiskError,
    InfrastructureError,
    PolicyTimeout,
    ServiceError,
)
from sparring.models.adapter_files import SHARED_ADVICE, AdapterShape, write_adapter
from sparring.models.tensor_files import write_weights
from sparring.protocols import TokenCallback
from sparring.types import Completion, EngineCapabilities, SampleRequest, StopReason, Weights

MAX_RETRIES = 7
LARGEST_DIFFERENCE = 0.25
"""The largest accepted mean difference between the log-probabilities of two servers. The same limit applies to an
engine and the learner."""
WEIGHTS_FILE = "model.safetensors"
_ONE_VERSION = (
    "a vLLM server holds one version of all weights. Train an adapter (model.trained_weights = 'lora'), or sample with "
    "engine.type = 'torch'."
)
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0


@dataclass(eq=False)
class _Version:
    """Weights that turns can be sampled with: their folder, and their name on the servers."""

    number: int
    fingerprint: str
    name: str
    folder: Path
    num_uses: int = 0
    """The number of turns and scores in progress with these weights."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the weights on the servers, and their folder."""
        self.num_uses += 1
        try:
            yield
        finally:
            self.num_uses -= 1


@final
class ServersEngine:
    """Samples with vLLM or SGLang servers that serve the same base model. Implements `protocols.Engine`.

        engine = ServersEngine(
            ["http://127.0.0.1:8000"], shape=AdapterShape(rank=16, alpha=64), folder=Path("adapters"), weights=weights
        )

    A new session gets the server that answered an earlier turn of the same conversation, or else the one with the fewest
    open sessions. It stays there, because the server's cache contains its earlier turns, and moves only if the server
    fails. A turn that a server does not answer is sampled again on another one. A turn that follows a grammar has no
    removed mass, because servers do not report it. The servers read the weights from `folder`, so all of them need access to it.
    """

    def __init__(
        self,
        servers: Sequence[str] | StartedServers,
        *,
        shape: AdapterShape | None,
        folder: Path | None = None,
        weights: Weights | None = None,
        api_key: str | None = None,
        max_running: int = 64,
        session_weights: Literal["latest", "pinned"] = "latest",
        kind: ServerKind = VLLM,
    ) -> None:
        """Connect to running servers, by their addresses or as processes of this machine, which are stopped by `close`.
        They get `weights`, as version 0, before the first turn.

        `shape` is that of the adapters, or None if weights are all weights of the model. They are in `folder`, or in a
        temporary folder of this machine. `max_running` limits the turns that run on one server at once. Raises
        ServiceError if a server does not answer, lacks a setting that sampling needs, or serves another model than the
        others, and DataError if the weights of sessions are pinned, but are not adapters, or if servers of this `kind`
        cannot get all weights.
        """
        self._is_pinned = session_weights == "pinned"
        if shape is None and self._is_pinned:
            raise DataError(f"sessions cannot keep their weights: {_ONE_VERSION}")
        mode: Mode = "all_weights" if shape is None else "adapters"
        if mode not in kind.how_to_start:
            raise DataError(
                f"{kind.name} servers cannot get all weights of a model here. Train an adapter (model.trained_weights = "
                "'lora'), or sample with vLLM servers."
            )
        self._local = servers if isinstance(servers, StartedServers) else None
        urls, key = (servers.urls, servers.api_key) if isinstance(servers, StartedServers) else (servers, api_key)
        self._pool = _Pool(
            [ServerClient(url, kind, api_key=key, max_running=max_running, mode=mode) for url in urls],
            kind,
            shape,
            folder or Path(mkdtemp(prefix="sparring-adapters-")),
            is_temporary=folder is None,
            patience_seconds=0.0 if self._local is None else START_SECONDS,
        )
        self._current: _Version | None = None if weights is None else self._pool.write(weights, 0)
        self._pins: dict[str, _Version] = {}
        self._earlier: list[_Version] = []
        """Versions before the newest that a turn or a session may still use."""
        self._owns_servers = True

    def freeze(self, weights: Weights | None = None) -> ServersEngine:
        if not self._pool.has_adapters:
            raise DataError(f"no policy can be frozen: {_ONE_VERSION}")
        frozen = object.__new__(ServersEngine)
        frozen._pool, frozen._local = self._pool, None
        frozen._current = None if weights is None else self._pool.write(weights, 0)
        frozen._is_pinned, frozen._pins, frozen._earlier, frozen._owns_servers = False, {}, [], False
        return frozen

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        """Sample a turn with the newest weights, or with those of the session if they are pinned.

        If all weights are trained, a turn that runs while newer weights are loaded has tokens of several versions.
        Raises the errors of `protocols.Engine.sample`, and InfrastructureError if no server answers, or if an answer
        lacks log-probabilities.
        """
        if request.constraint is not None and not self._pool.kind.takes_grammars:
            raise ConstraintError(
                f"{self._pool.kind.name} servers get no grammars; request an answer without a grammar."
            )
        if 0.0 < request.sampling.temperature < self._pool.kind.least_temperature:
            raise DataError(
                f"{self._pool.kind.name} servers cannot sample at temperature = {request.sampling.temperature:g}; set a "
                f"temperature of 0 or at least {self._pool.kind.least_temperature:g}."
            )
        version = self._version_of(request.session_id)
        generation = await self._pool.generate(version, request, on_token)
        spans = [(self._pool.find(name), number) for name, number in generation.versions]
        return Completion(
            token_ids=generation.token_ids,
            sampled_logprobs=generation.logprobs,
            stop_reason=StopReason.LENGTH if generation.finish_reason == "length" else StopReason.STOP,
            versions=tuple((one.number, number) for one, number in spans),
            fingerprint=spans[-1][0].fingerprint,
            num_computed_tokens=len(request.prompt_ids) - generation.num_cached + len(generation.token_ids),
        )

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Write the weights, load them on every server that answers, and use them for new turns.

        Raises ServiceError if no server loads them.
        """
        loaded = await asyncio.to_thread(self._pool.write, weights, version)
        if not self._pool.has_adapters:
            # A turn that starts now must not load the weights before these.
            earlier, self._current = self._current, loaded
            await self._pool.load(loaded)
            if earlier is not None:
                await self._pool.remove(earlier)
            return
        try:
            await self._pool.load(loaded)
        except BaseException:
            await self._pool.remove(loaded)
            raise
        if self._current is not None:
            self._earlier.append(self._current)
        self._current = loaded
        for earlier in tuple(self._earlier):
            if earlier.num_uses == 0 and earlier not in self._pins.values():
                self._earlier.remove(earlier)
                await self._pool.remove(earlier)

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0, first: int = 1) -> list[float]:
        scores = await self._pool.score(self._loaded, token_ids, temperature, first)
        _compare_servers(scores)
        return next(iter(scores.values()))

    async def replica_logprobs(self, token_ids: Sequence[int]) -> Mapping[str, list[float]]:
        return await self._pool.score(self._loaded, token_ids, temperature=1.0, first=1)

    def take_out(self, replica: str) -> None:
        self._pool.take_out(replica)

    def open_session(self, session_id: str) -> None:
        """Do nothing: a session gets its server with its first turn."""

    def close_session(self, session_id: str) -> None:
        self._pins.pop(session_id, None)
        self._pool.leave(session_id)

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(
            reports_token_ids=True,
            pins_weights=self._is_pinned,
            holds_several_weights=self._pool.has_adapters,
            constrained_sampling=self._pool.kind.takes_grammars,
            scores_given_ids=True,
        )

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
        """Return the number of turns that were sampled again since the last call, and the share of servers that
        answered last time; for local servers, also how many times one was started again since the start."""
        if not self._owns_servers:
            return {}
        restarts = {} if self._local is None else {"engine/server_restarts": float(self._local.num_restarts)}
        return self._pool.take_metrics() | restarts

    async def close(self) -> None:
        """End running turns and close the connections. Local servers stop, and others keep running."""
        if not self._owns_servers:
            return
        try:
            await self._pool.close()
        finally:
            if self._local is not None:
                await asyncio.to_thread(self._local.close)

    @property
    def _loaded(self) -> _Version:
        if self._current is None:
            raise InfrastructureError("this policy has no weights yet; call load_weights before the first turn.")
        return self._current

    def _version_of(self, session_id: str) -> _Version:
        return self._pins.setdefault(session_id, self._loaded) if self._is_pinned else self._loaded


@final
class _Pool:
    """The servers, the weights on them, and the server of each session."""

    def __init__(
        self,
        servers: Sequence[ServerClient],
        kind: ServerKind,
        shape: AdapterShape | None,
        folder: Path,
        *,
        is_temporary: bool,
        patience_seconds: float,
    ) -> None:
        """Create the folder. `patience_seconds` is how long a request is repeated at least, because servers that ended start
        again. Raises DiskError."""
        models = {server.base.source: server for server in servers}
        if len(models) > 1:
            found = ", ".join(f"{one.where}: {name}" for name, one in models.items())
            raise ServiceError(
                f"the {kind.name} servers serve different models: {found}. Serve the recipe's base model on each."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskError(f"the folder of the weights cannot be created: {error}. Choose another one.") from error
        self._all, self._servers = tuple(servers), tuple(servers)
        """All servers, and those that have not been taken out."""
        self._shape, self._folder, self._is_temporary = shape, folder, is_temporary
        self._in_turn = list(servers)
        """The servers, with the one that was chosen last at the end."""
        self._sessions: dict[str, _Session] = {}
        self._num_sessions: Counter[ServerClient] = Counter()
        """The number of sessions of each server."""
        self._recent = RecentPrompts[ServerClient]()
        self._versions: dict[str, _Version] = {}
        """All weights so far, by name. Those that no turn needs any more have no folder."""
        self._newest: _Version | None = None
        self._num_retried = 0
        self._is_closed = False
        self._patience_seconds = patience_seconds
        self._rng = random.Random()
        self.kind, self.has_adapters = kind, shape is not None
        self.max_context_tokens = min(server.base.max_context_tokens for server in servers)

    def write(self, weights: Weights, number: int) -> _Version:
        """Write weights into a folder, under a name that no other weights have. Raises ServiceError if the engine has been
        closed meanwhile."""
        name = f"{number}-{weights.fingerprint[:12]}-{self._rng.randrange(16**6):06x}"
        if self._shape is not None:
            name = f"{self._folder.name}-{name}"
            folder = self._folder.absolute() / name
            write_adapter(weights, self._shape, folder)
        else:
            folder = self._folder.absolute() / name
            _write_all_weights(weights, folder)
        version = _Version(number=number, fingerprint=weights.fingerprint, name=name, folder=folder)
        self._versions[name] = version
        if self._is_closed:
            shutil.rmtree(folder, ignore_errors=True)
            raise ServiceError("the engine is closed, so it loads no weights.")
        return version

    def find(self, name: str) -> _Version:
        return self._versions[name]

    async def load(self, version: _Version) -> None:
        """Load weights on every server. A server that does not answer gets them before its next turn.

        Raises ServiceError if no server loads them.
        """
        self._newest = version
        problem: object = "the engine is closed"
        for attempt in self._attempts():
            results = await asyncio.gather(
                *(self._load_on(server, version) for server in self._servers), return_exceptions=True
            )
            failures = [one for one in results if isinstance(one, BaseException)]
            for failure in failures:
                if not isinstance(failure, Unanswered):
                    raise failure
            if len(failures) < len(self._servers):
                return
            problem = failures[0]
            await asyncio.sleep(self._pause(attempt))
        raise ServiceError(
            f"no {self.kind.name} server loaded the weights: {problem}. Start the servers, and resume the run."
        )

    async def _load_on(self, server: ServerClient, version: _Version) -> str:
        """Load the weights that a turn uses, and return their name: these, or without adapters the newest."""
        if self.has_adapters:
            await server.load_adapter(version.name, version.folder)
            return version.name

        def find_newest() -> tuple[str, Path]:
            newest = self._newest or version
            return newest.name, newest.folder / WEIGHTS_FILE

        return await server.load_weights(find_newest)

    async def remove(self, version: _Version) -> None:
        """Unload an unused adapter from every server, and delete its folder."""
        for server in self._all:
            await server.unload_adapter(version.name)
        await asyncio.to_thread(shutil.rmtree, version.folder, ignore_errors=True)

    async def generate(self, version: _Version, request: SampleRequest, on_token: TokenCallback | None) -> Generation:
        """Sample a turn on the session's server, and on another one if it fails before its first token."""
        room = self.max_context_tokens - len(request.prompt_ids)
        request = replace(
            request, sampling=replace(request.sampling, max_tokens=min(request.sampling.max_tokens, room))
        )
        session = self._sessions.setdefault(request.session_id, _Session(began=time.monotonic()))
        attempts = _Attempts(request.deadline, session)
        with version.in_use():
            try:
                async with asyncio.timeout(attempts.seconds):
                    generation = await self._try(attempts, session, version, request, on_token)
                session.seconds_lost += attempts.seconds_lost
                return generation
            except TimeoutError:
                if attempts.is_slow_policy and await attempts.is_server_healthy():
                    raise PolicyTimeout(f"session {request.session_id}: the turn did not end in time.") from None
            raise InfrastructureError(
                f"session {request.session_id}: no {self.kind.name} server answered: {attempts.problem}."
            )

    async def _try(
        self,
        attempts: _Attempts,
        session: _Session,
        version: _Version,
        request: SampleRequest,
        on_token: TokenCallback | None,
    ) -> Generation:
        for attempt in self._attempts():
            server = self._choose(session, request)
            self._move(session, server)
            try:
                async with server.slots:
                    name = await self._load_on(server, version)
                    attempts.begin(server)
                    generation = await server.generate(name, request, on_token)
                    self._recent.note(request.prompt_ids, server)
                    return generation
            except Unanswered as failure:
                attempts.fail(str(failure))
                self._num_retried += 1
                self._move(session, None)
                await asyncio.sleep(self._pause(attempt))
        raise InfrastructureError(
            f"session {request.session_id}: no {self.kind.name} server answered: {attempts.problem}."
        )

    def _attempts(self) -> Iterator[int]:
        """Yield the numbers of attempts, as long as another attempt may succeed."""
        until = time.monotonic() + self._patience_seconds
        for attempt in count():
            if self._is_closed or (attempt > MAX_RETRIES and time.monotonic() > until):
                return
            yield attempt

    def _choose(self, session: _Session, request: SampleRequest) -> ServerClient:
        """Return the session's server, or for a new session the one with the fewest sessions.

        The choice is among the servers that have an earlier turn of the conversation and a free slot, else among those
        that answered their last request, else among all. Servers with equally many sessions are taken in turn.
        """
        if session.home is not None and not session.home.is_down:
            return session.home
        up = [one for one in self._in_turn if not one.is_down] or self._in_turn
        earlier = self._recent.find(request.prompt_ids)
        candidates = [one for one in up if one in earlier and not one.slots.locked()] or up
        chosen = min(candidates, key=self._num_sessions.__getitem__)
        self._in_turn.remove(chosen)
        self._in_turn.append(chosen)
        return chosen

    def _move(self, session: _Session, home: ServerClient | None) -> None:
        """Change the server of a session. A session that was closed while its turn ran does not count."""
        if session.is_open and session.home is not None:
            self._num_sessions[session.home] -= 1
        if session.is_open and home is not None:
            self._num_sessions[home] += 1
        session.home = home

    async def score(
        self, version: _Version, token_ids: Sequence[int], temperature: float, first: int
    ) -> dict[str, list[float]]:
        """Return the log-probabilities of given ids by the name of each server that answers. Raises ServiceError if none
        does."""
        problem: BaseException | None = None
        with version.in_use():
            for attempt in self._attempts():
                up = [one for one in self._servers if not one.is_down] or self._servers
                results = await asyncio.gather(
                    *(self._score_on(one, version, token_ids, temperature, first) for one in up), return_exceptions=True
                )
                scores = {one.where: found for one, found in zip(up, results, strict=True) if isinstance(found, list)}
                if scores:
                    return scores
                problem = next(found for found in results if isinstance(found, BaseException))
                if not isinstance(problem, Unanswered):
                    break
                await asyncio.sleep(self._pause(attempt))
        raise ServiceError(
            f"no {self.kind.name} server scores given ids: {problem}. Start the servers, and resume the run."
        )

    async def _score_on(
        self, server: ServerClient, version: _Version, token_ids: Sequence[int], temperature: float, first: int
    ) -> list[float]:
        return await server.score(await self._load_on(server, version), token_ids, temperature, first)

    def take_out(self, name: str) -> None:
        """Start no more turns on a server."""
        self._servers = tuple(one for one in self._servers if one.where != name)
        self._in_turn = [one for one in self._in_turn if one.where != name]
        for session in self._sessions.values():
            if session.home is not None and session.home.where == name:
                self._move(session, None)

    def leave(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            home = session.home
            self._move(session, None)
            # A turn that still runs keeps its server.
            session.is_open, session.home = False, home

    def take_metrics(self) -> dict[str, float]:
        num_retried, self._num_retried = self._num_retried, 0
        up = sum(not one.is_failing for one in self._servers) / len(self._all)
        return {"engine/retried_turns": float(num_retried), "engine/servers_up": up}

    async def close(self) -> None:
        self._is_closed = True
        for version in tuple(self._versions.values()):
            if version.folder.exists():
                await self.remove(version)
        for server in self._all:
            await server.close()
        if self._is_temporary:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _pause(self, attempt: int) -> float:
        return min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS) * self._rng.uniform(0.75, 1.0)


@dataclass(eq=False)
class _Session:
    """An open session."""

    began: float
    """The monotonic time of its first turn."""
    home: ServerClient | None = None
    """The server that answers its turns."""
    seconds_lost: float = 0.0
    """The time that its earlier turns lost because of servers."""
    is_open: bool = True


@final
class _Attempts:
    """The attempts at one turn, and whether the policy or a server causes a timeout."""

    def __init__(self, deadline: float | None, session: _Session) -> None:
        self._session = session
        self._began = time.monotonic()
        self.seconds = None if deadline is None else max(0.0, deadline - self._began)
        self.problem = "all slots of the server were taken, or it was loading weights"
        self._server: ServerClient | None = None
        self._num_failed = 0
        self._waited = 0.0
        self._paused = 0.0

    def begin(self, server: ServerClient) -> None:
        self._server, self._waited, self._paused = server, time.monotonic() - self._began, server.paused.seconds

    def fail(self, problem: str) -> None:
        self._server, self.problem = None, problem
        self._num_failed += 1

    @property
    def seconds_lost(self) -> float:
        """The time before the last attempt, and the time for which weights were loaded during it."""
        return self._waited + (0.0 if self._server is None else self._server.paused.seconds - self._paused)

    @property
    def is_slow_policy(self) -> bool:
        """Whether the turn is in its first attempt, and the policy had at least half of the time of this turn, and of the
        session so far."""
        if self._server is None or self._num_failed:
            return False
        seconds, lost = self.seconds or 0.0, self.seconds_lost
        of_session = self._began - self._session.began + seconds
        return lost <= seconds / 2 and self._session.seconds_lost + lost <= of_session / 2

    async def is_server_healthy(self) -> bool:
        is_healthy = self._server is not None and await self._server.is_healthy()
        if self._server is not None and not is_healthy:
            self.problem = f"{self._server.where} has stopped answering"
        return is_healthy


def _write_all_weights(weights: Weights, folder: Path) -> None:
    """Write the file that a server loads. Raises DiskError."""
    try:
        folder.mkdir()
        write_weights(weights, folder / WEIGHTS_FILE)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise DiskError(f"the weights {folder} cannot be written: {error}. {SHARED_ADVICE}") from error


def _compare_servers(scores: Mapping[str, list[float]]) -> None:
    """Raise ServiceError if two servers report different log-probabilities of the same ids."""
    (first, expected), *others = scores.items()
    for name, found in others:
        difference = sum(abs(a - b) for a, b in zip(expected, found, strict=True)) / max(1, len(expected))
        if difference > LARGEST_DIFFERENCE:
            raise ServiceError(
                f"{first} and {name} differ by {difference:.3g} per token in the log-probabilities of one text, so one of "
                "them has other weights. Start it again, and resume the run."
            )
