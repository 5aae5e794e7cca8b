"""A server on a socket. It runs uvicorn in the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from sparring.errors import ServiceError
from sparring.runtime.address import Address
from sparring.runtime.garbage import spare_loaded_objects
from sparring.runtime.threads import let_event_loop_run
from sparring.web.certificate import Certificate
from sparring.web.hosts import HostCheck, find_host_names
from sparring.web.protocol import MOST_CONNECTIONS, BoundedProtocol, Places, find_most_connections

_ACCEPTED_AT_ONCE = 32
_WAITING_CONNECTIONS = 2048


class _QuietUvicorn(uvicorn.Server):
    """A server that leaves the handling of Ctrl-C to the program that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """A server that serves one app on one socket."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        tls: Certificate | None = None,
        allowed_hosts: Sequence[str] = (),
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        """Create a server that does not listen yet. With `tls`, it speaks HTTPS only. Clients may address it by the names
        of this machine's loopback addresses and `allowed_hosts`, or by any name if it listens on another address and
        `allowed_hosts` is empty. More than `most_connections` are closed again."""
        self._app = HostCheck(app, find_host_names(host, allowed_hosts))
        self._tls = tls
        self._most_connections = most_connections
        self._host = host
        self._port = port
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._process = contextlib.ExitStack()
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Bind the socket, and serve requests in the running event loop. Starting twice is allowed. Raises ServiceError
        if the address is taken, and UsageError if the certificate cannot be loaded."""
        async with self._starting:
            if self._serving is None:
                if self._tls is not None:
                    self._tls.check()
                await self._start()

    async def _start(self) -> None:
        # asyncio sends small pieces at once (TCP_NODELAY) on sockets that name their protocol. On other sockets, the
        # body of a response waits 40 ms for the acknowledgement of its head.
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((self._host, self._port))
        except OSError as error:
            bound.close()
            raise ServiceError(
                f"{Address(self._host, self._port)} cannot be bound: {error}. Choose another port, or 0 for a free port."
            ) from error
        self._port = bound.getsockname()[1]
        places = Places(find_most_connections(self._most_connections))
        self._process.enter_context(spare_loaded_objects())
        self._process.enter_context(let_event_loop_run())
        config = uvicorn.Config(
            self._app,
            http=cast(Any, partial(BoundedProtocol, places=places)),
            ws="none",
            ssl_certfile=None if self._tls is None else self._tls.certificate,
            ssl_keyfile=None if self._tls is None else self._tls.key,
            # uvicorn warns for each invalid request, with which a stranger could fill the log.
            log_level="error",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            timeout_graceful_shutdown=2,
            backlog=_ACCEPTED_AT_ONCE,
        )
        self._server = _QuietUvicorn(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110 (uvicorn offers no event)
            await asyncio.sleep(0.001)
        # asyncio uses one number for both: connections that wait in the kernel, and those that are accepted without a pause
        # for other work. The first may be large.
        bound.listen(_WAITING_CONNECTIONS)

    async def stop(self) -> None:
        """Wait up to two seconds for running requests to finish, and stop. Stopping twice is allowed."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._serving = None
            self._process.close()

    @property
    def address(self) -> str:
        """The server's URL without a path."""
        return f"http{'s' if self._tls else ''}://{Address(self._host, self._port)}"

    @property
    def base_url(self) -> str:
        return f"{self.address}/v1"
