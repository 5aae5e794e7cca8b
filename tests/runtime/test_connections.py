"""A client with `Connections` has one connection for each request at the same time, and uses it again."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sparring.runtime.connections import Client, Connections
from sparring.web.listener import Listener


def served(work: Callable[[httpx.AsyncClient, Connections], Awaitable[None]]) -> set[tuple[str, int]]:
    """Run `work` with a client of a server, and return the addresses of the client's connections."""
    clients: set[tuple[str, int]] = set()

    async def answer(request: Request) -> Response:
        assert request.client is not None
        clients.add(tuple(request.client))
        await asyncio.sleep(float(request.query_params["seconds"]))
        return PlainTextResponse("answer")

    async def run() -> None:
        listener = Listener(Starlette(routes=[Route("/", answer)]), "127.0.0.1", 0)
        await listener.start()
        async with Client(listener.base_url, base_url=listener.base_url.removesuffix("/v1")) as client:
            connections = client._transport
            assert isinstance(connections, Connections)
            await work(client, connections)
        await listener.stop()

    asyncio.run(run())
    return clients


def test_requests_at_the_same_time_have_connections_of_their_own_that_are_used_again() -> None:
    async def work(client: httpx.AsyncClient, connections: Connections) -> None:
        for _ in range(3):
            answers = await asyncio.gather(*(client.get("/", params={"seconds": 0.2}) for _ in range(20)))
            assert {one.text for one in answers} == {"answer"}
        assert len(connections._free) == len(connections._pools) == 20
        for _ in range(5):
            await client.get("/", params={"seconds": 0})

    assert len(served(work)) == 20


def test_a_cancelled_request_and_a_stream_that_is_not_read_give_their_connection_back() -> None:
    async def work(client: httpx.AsyncClient, connections: Connections) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.get("/", params={"seconds": 30})
        async with client.stream("GET", "/", params={"seconds": 0}):
            assert not connections._free
        assert len(connections._free) == len(connections._pools) == 1
        assert (await client.get("/", params={"seconds": 0})).text == "answer"

    served(work)


def test_an_answer_is_freed_as_soon_as_nothing_uses_it() -> None:
    async def work(client: httpx.AsyncClient, connections: Connections) -> None:
        answer = await client.get("/", params={"seconds": 0})
        assert answer.text == "answer"
        freed = weakref.ref(answer)
        del answer
        assert freed() is None

    gc.disable()
    try:
        served(work)
    finally:
        gc.enable()


def test_a_client_that_needs_a_proxy_gets_no_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    assert not isinstance(Client("http://node1:8000")._transport, Connections)
    assert isinstance(Client("http://127.0.0.1:8000")._transport, Connections)
    monkeypatch.delenv("HTTP_PROXY")
