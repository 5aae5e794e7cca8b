"""HTTP connections for many requests at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast, final
from urllib.request import getproxies

import httpx

from sparring.runtime.remote import needs_proxy


class Client(httpx.AsyncClient):
    """A client for many requests at the same time to one address.

    Requests use `Connections`, or the environment's proxy if the address needs it. An answer that was read is freed as soon
    as nothing uses it: httpx makes a cycle of an answer and its stream, so that the contents of thousands of answers would
    wait for a garbage collection.
    """

    def __init__(self, url: str, *, keepalive_expiry: float = 5.0, **options: Any) -> None:
        """Pass the options of httpx.AsyncClient. An idle connection is kept for `keepalive_expiry` seconds."""
        uses_proxy = needs_proxy(url) and getproxies()
        transport = None if uses_proxy else Connections(keepalive_expiry=keepalive_expiry)
        # These are the limits of a client that uses a proxy. `Connections` has no limit.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=keepalive_expiry)
        super().__init__(limits=limits, transport=transport, **options)

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        response = await super().send(request, stream=stream, **options)
        if not stream:
            del response.stream
        return response


@final
class Connections(httpx.AsyncBaseTransport):
    """Sends each request through a pool of its own, so that a request takes the same time however many others run.

    A pool of httpx visits all its connections at the begin and at the end of each request, and for each idle one visits
    all of them again. With thousands of connections, this takes longer than everything else. The number of connections is
    that of the requests at the same time.
    """

    def __init__(self, *, keepalive_expiry: float | None) -> None:
        self._limits = httpx.Limits(max_keepalive_connections=1, keepalive_expiry=keepalive_expiry)
        self._ssl_context = httpx.create_ssl_context()
        self._pools: list[httpx.AsyncHTTPTransport] = []
        self._free: list[httpx.AsyncHTTPTransport] = []
        """The pools without a request, the last used one at the end."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        pool = self._free.pop() if self._free else self._add_pool()
        try:
            response = await pool.handle_async_request(request)
        except BaseException:
            self._free.append(pool)
            raise
        stream = cast(httpx.AsyncByteStream, response.stream)
        response.stream = _Stream(stream, partial(self._free.append, pool))
        return response

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()

    def _add_pool(self) -> httpx.AsyncHTTPTransport:
        self._pools.append(httpx.AsyncHTTPTransport(verify=self._ssl_context, limits=self._limits))
        return self._pools[-1]


@final
class _Stream(httpx.AsyncByteStream):
    """The body of an answer. `release` is called once, when the answer is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, release: Callable[[], None]) -> None:
        self._stream, self._release = stream, release
        self._is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if not self._is_closed:
                self._is_closed = True
                self._release()
