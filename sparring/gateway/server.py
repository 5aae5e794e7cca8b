"""The gateway and the model server on a socket, by default on loopback and a free port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, final

from sparring.gateway.app import create_app
from sparring.gateway.endpoints import EpisodeEndpoints, StatelessEndpoints
from sparring.gateway.overload import MAX_IN_FLIGHT
from sparring.gateway.queue import WorkQueue
from sparring.gateway.report import EpisodeReport
from sparring.gateway.versions import Versions
from sparring.protocols import Chat
from sparring.sessions import AnySession
from sparring.types import Sampling
from sparring.web.certificate import Certificate
from sparring.web.gate import Gate
from sparring.web.listener import Listener
from sparring.web.protocol import MOST_CONNECTIONS


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
        allowed_hosts: Sequence[str] = (),
        tls: Certificate | None = None,
    ) -> None:
        """Create a gateway. `/v1/models` lists `model_name`. Requests may name any model, because the key determines
        the session. Workers poll `queue`. `max_in_flight` limits the number of concurrent requests. `allowed_hosts` and
        `tls` are those of `Listener`."""
        self._endpoints = EpisodeEndpoints(model_name, max_in_flight=max_in_flight)
        self._listener = Listener(
            create_app(self._endpoints, queue=queue),
            host,
            port,
            tls=tls,
            allowed_hosts=allowed_hosts,
            most_connections=max(MOST_CONNECTIONS, 2 * max_in_flight),
        )

    def register(self, session: AnySession) -> EpisodeEndpoint:
        """Open an endpoint with a new key for a session, and likewise for each of the other policies of its episode.
        The keys become invalid when the session is closed."""
        api_key = self._endpoints.register(session)
        report = self._endpoints.report(api_key)
        policies = {
            name: EpisodeEndpoint(self.base_url, self._endpoints.register(other, of=api_key), report)
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
        gate: Gate | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        allowed_hosts: Sequence[str] = (),
        tls: Certificate | None = None,
    ) -> None:
        """Create a server. Without a `gate`, no key is required, so bind the server to loopback only. `allowed_hosts`
        and `tls` are those of `Listener`."""
        endpoints = StatelessEndpoints(versions=versions, chat=chat, sampling=sampling)
        app = create_app(endpoints, versions=versions, gate=gate)
        self._listener = Listener(app, host, port, tls=tls, allowed_hosts=allowed_hosts)

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
