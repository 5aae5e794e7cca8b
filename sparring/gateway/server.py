"""The gateway on a socket. It runs uvicorn in the running event loop, by default on loopback and a free port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self, final

import uvicorn
from starlette.types import ASGIApp

from sparring.errors import ServiceError
from sparring.gateway.app import create_app
from sparring.gateway.endpoints import EpisodeEndpoints, StatelessEndpoints
from sparring.gateway.overload import MAX_IN_FLIGHT
from sparring.gateway.queue import WorkQueue
from sparring.gateway.report import EpisodeReport
from sparring.gateway.versions import Versions
from sparring.protocols import Chat
from sparring.runtime.garbage import spare_loaded_objects
from sparring.sessions import AnySession
from sparring.types import Sampling


@dataclass(frozen=True, slots=True)
class EpisodeEndpoint:
    """The endpoint of an episode's session, for any OpenAI client, and the agent's report on the episode."""

    base_url: str
    api_key: str
    report: EpisodeReport
    policies: Mapping[str, EpisodeEndpoint] = field(default_factory=dict)
    """The endpoints of the episode's other policies, keyed by policy name. A report to any of them is a report on the
    episode."""

    @property
    def endpoint(self) -> str:
        """The address of the gateway. MTRL calls this address the endpoint of its runtime."""
        return self.base_url.removesuffix("/v1")


class _QuietUvicorn(uvicorn.Server):
    """A server that leaves the handling of Ctrl-C to the program that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """A server that serves one app on one socket."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._garbage = contextlib.ExitStack()
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Bind the socket, and serve requests in the running event loop. Starting twice is allowed. Raises ServiceError
        if the address is taken."""
        async with self._starting:
            if self._serving is None:
                await self._start()

    async def _start(self) -> None:
        # asyncio sends small pieces at once (TCP_NODELAY) on sockets that name their protocol. On other sockets, the
        # body of a response waits 40 ms for the acknowledgement of its head.
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((self._host, self._port))
        except OSError as error:
            bound.close()
            raise ServiceError(
                f"{self._host}:{self._port} cannot be bound: {error}. Choose another port, or 0 for a free port."
            ) from error
        self._port = bound.getsockname()[1]
        self._garbage.enter_context(spare_loaded_objects())
        config = uvicorn.Config(
            self._app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        self._server = _QuietUvicorn(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110 (uvicorn offers no event)
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Wait up to two seconds for running requests to finish, and stop. Stopping twice is allowed."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._serving = None
            self._garbage.close()

    @property
    def base_url(self) -> str:
        return f"http://{self._host}:{self._port}/v1"


@final
class Gateway:
    """Provides HTTP endpoints for the sessions of running episodes.

    async with Gateway() as gateway:
        endpoint = gateway.register(session)
        client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    """

    def __init__(
        self,
        *,
        model_name: str = "policy",
        host: str = "127.0.0.1",
        port: int = 0,
        queue: WorkQueue | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        """Create a gateway. `/v1/models` lists `model_name`. Requests may name any model, because the key determines
        the session. Workers poll `queue`. `max_in_flight` limits the number of concurrent requests."""
        self._endpoints = EpisodeEndpoints(model_name, max_in_flight=max_in_flight)
        self._listener = Listener(create_app(self._endpoints, queue=queue), host, port)

    def register(self, session: AnySession) -> EpisodeEndpoint:
        """Open an endpoint with a new key for a session, and likewise for each of the other policies of its episode.
        The keys become invalid when the session is closed."""
        api_key = self._endpoints.register(session)
        report = self._endpoints.report(api_key)
        policies = {
            name: EpisodeEndpoint(self.base_url, self._endpoints.register(other, report), report)
            for name, other in session.others.items()
        }
        return EpisodeEndpoint(self.base_url, api_key, report, policies)

    @property
    def base_url(self) -> str:
        return self._listener.base_url

    async def start(self) -> None:
        """Start to serve. Raises ServiceError if the address is in use."""
        await self._listener.start()

    async def stop(self) -> None:
        await self._listener.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop()


@final
class ModelServer:
    """The versions of one model behind the OpenAI endpoint. Every request has its own session, and nothing is recorded.

    async with ModelServer(versions=Versions([Version("m", engine)]), chat=chat, sampling=Sampling()) as server:
        ...
    """

    def __init__(
        self,
        *,
        versions: Versions,
        chat: Chat,
        sampling: Sampling,
        api_key: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Create a server. Without `api_key`, any key is accepted, so bind the server to loopback only."""
        endpoints = StatelessEndpoints(versions=versions, chat=chat, sampling=sampling, api_key=api_key)
        self._listener = Listener(create_app(endpoints, versions=versions), host, port)

    @property
    def base_url(self) -> str:
        return self._listener.base_url

    async def start(self) -> None:
        """Start to serve. Raises ServiceError if the address is in use."""
        await self._listener.start()

    async def stop(self) -> None:
        await self._listener.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop()
