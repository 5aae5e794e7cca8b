"""A stranger's connection costs a server little, and ends."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, ClassVar

import pytest

from sparring.web import protocol
from sparring.web.listener import Listener

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class App:
    """Answers with the number of bytes of the body, after `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.ends: list[str] = []
        """How each request ended: with an answer, or because the client has gone."""

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        num = 0
        while (message := await receive())["type"] == "http.request":
            num += len(message["body"])
            if not message["more_body"]:
                break
        else:
            self.ends.append("gone")
            return
        await self.go_on.wait()
        body = str(num).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})
        self.ends.append("answered")


def serve(play: Callable[[App, int], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        app = App()
        listener = Listener(app, "127.0.0.1", 0, **options)
        await listener.start()
        try:
            async with asyncio.timeout(20):
                await play(app, int(listener.address.rpartition(":")[2]))
        finally:
            Client.close_all()
            await listener.stop()

    asyncio.run(run())


class Client:
    _open: ClassVar[list[Client]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer
        self._open.append(self)

    @classmethod
    def close_all(cls) -> None:
        while cls._open:
            cls._open.pop().close()

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Return the status and the body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return int(head.split(b" ")[1]), await self.reader.readexactly(int(length.split(b":")[1]))

    async def is_closed(self) -> bool:
        """Wait until the server closes the connection."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    def pause(self) -> None:
        """Stop reading."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def close(self) -> None:
        self._writer.transport.abort()


def message(body: bytes) -> str:
    return json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "request_",
    [
        GET[:-2] + b"X-Long: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        GET[:-2] + b"X-Many: x\r\n" * 300 + b"\r\n",
        # The trailers and the extensions of a body in chunks are not part of its content.
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 400_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + b"X-Trailer: x\r\n" * 30_000,
    ],
)
def test_headers_are_limited(request_: bytes) -> None:
    async def play(app: App, port: int) -> None:
        client = await Client.connect(port)
        client.send(request_)
        status, body = await client.answer()
        assert (status, "200 headers" in message(body)) == (431, True)
        assert await client.is_closed()
        assert "answered" not in app.ends

    serve(play)


def test_a_header_that_never_ends_is_cut_off_whatever_its_pieces() -> None:
    async def play(_app: App, port: int) -> None:
        client = await Client.connect(port)
        client.send(b"GET /health HTTP/1.1\r\nX: ")
        for _ in range(70):
            client.send(b"x" * 1000)
            await asyncio.sleep(0)
        assert (await client.answer())[0] == 431

    serve(play)


def test_a_body_in_small_chunks_is_read() -> None:
    async def play(_app: App, port: int) -> None:
        client = await Client.connect(port)
        client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"20\r\n" + b"x" * 32 + b"\r\n")
        for _ in range(5_000):
            client.send(b"20\r\n" + b"x" * 32 + b"\r\n")
        client.send(b"0\r\n\r\n")
        assert await client.answer() == (200, b"160032")

    serve(play)


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"", 408), (b"GET / HT", 408), (HEAD + b"Content-Length: 5\r\n\r\nab", 408)],
    ids=["nothing", "half of the headers", "half of the body"],
)
def test_headers_and_bodies_have_deadlines(sent: bytes, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.2)

    async def play(app: App, port: int) -> None:
        client = await Client.connect(port)
        client.send(sent)
        assert (await client.answer())[0] == status
        assert await client.is_closed()
        if b"Content" in sent:
            assert app.ends == ["gone"]

    serve(play)


def test_a_slow_body_is_read_as_long_as_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.5)

    async def play(_app: App, port: int) -> None:
        client = await Client.connect(port)
        client.send(HEAD + b"Content-Length: 6\r\n\r\n")
        for _ in range(6):
            await asyncio.sleep(0.2)
            client.send(b"x")
        assert await client.answer() == (200, b"6")

    serve(play)


def test_a_second_request_on_a_connection_has_a_deadline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.2)

    async def play(_app: App, port: int) -> None:
        client = await Client.connect(port)
        client.send(GET)
        assert await client.answer() == (200, b"0")
        client.send(GET[:10])
        assert (await client.answer())[0] == 408

    serve(play)


def test_an_answer_that_takes_long_has_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.1)
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.1)

    async def play(app: App, port: int) -> None:
        app.go_on.clear()
        client = await Client.connect(port)
        client.send(HEAD + b"Content-Length: 2\r\n\r\nab")
        await asyncio.sleep(0.5)
        app.go_on.set()
        assert await client.answer() == (200, b"2")

    serve(play)


def test_a_client_that_does_not_read_its_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.3)

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        ended.set()

    ended = asyncio.Event()

    async def run() -> None:
        listener = Listener(app, "127.0.0.1", 0)
        await listener.start()
        client = await Client.connect(int(listener.address.rpartition(":")[2]))
        client.pause()
        client.send(GET)
        async with asyncio.timeout(10):
            await ended.wait()
        Client.close_all()
        await listener.stop()

    asyncio.run(run())


def test_connections_that_send_nothing_give_way_to_new_ones_and_requests_in_progress_stay() -> None:
    async def play(app: App, port: int) -> None:
        app.go_on.clear()
        at_work = await Client.connect(port)
        at_work.send(GET)
        silent = [await Client.connect(port) for _ in range(3)]
        await asyncio.sleep(0.1)
        newest = [await Client.connect(port) for _ in range(3)]
        for client in newest:
            client.send(GET)
        for client in silent:
            assert await client.is_closed()
        app.go_on.set()
        for client in (at_work, *newest):
            assert await client.answer() == (200, b"0")

    serve(play, most_connections=4)


def test_a_connection_beyond_those_at_work_is_refused_and_a_place_is_free_again_later() -> None:
    async def play(app: App, port: int) -> None:
        app.go_on.clear()
        working = [await Client.connect(port) for _ in range(2)]
        for client in working:
            client.send(GET)
        await asyncio.sleep(0.1)
        refused = await Client.connect(port)
        status, body = await refused.answer()
        assert (status, "too many connections" in message(body)) == (503, True)
        app.go_on.set()
        for client in working:
            assert (await client.answer())[0] == 200
            client.close()
        await asyncio.sleep(0.1)
        later = await Client.connect(port)
        later.send(GET)
        assert await later.answer() == (200, b"0")

    serve(play, most_connections=2)


def test_one_machine_gets_half_of_the_places_unless_it_is_this_one() -> None:
    class Connection:
        def __init__(self) -> None:
            self.transport = self

        def abort(self) -> None:
            raise AssertionError("no connection has to give way")

    places = protocol.Places(4)
    connections: list[Any] = [Connection() for _ in range(5)]
    assert [places.enter(one, "10.0.0.1") for one in connections[:3]] == [True, True, False]
    assert [places.enter(one, "127.0.0.1") for one in connections[3:]] == [True, True]
    places.leave(connections[0], "10.0.0.1")
    assert places.enter(connections[2], "10.0.0.1")


def test_pipelined_requests_are_answered_in_order() -> None:
    async def play(_app: App, port: int) -> None:
        client = await Client.connect(port)
        client.send(b"".join(HEAD + b"Content-Length: %d\r\n\r\n" % num + b"x" * num for num in (1, 2, 3)))
        assert [await client.answer() for _ in range(3)] == [(200, b"1"), (200, b"2"), (200, b"3")]

    serve(play)


@contextmanager
def counted_objects() -> Iterator[Callable[[], int]]:
    def count() -> int:
        gc.collect()
        return sum(isinstance(one, protocol.BoundedProtocol) for one in gc.get_objects())

    yield count


def test_nothing_of_a_closed_connection_stays() -> None:
    async def play(_app: App, port: int) -> None:
        with counted_objects() as count:
            for _ in range(20):
                client = await Client.connect(port)
                with closing(client):
                    client.send(GET)
                    assert (await client.answer())[0] == 200
            Client.close_all()
            await asyncio.sleep(0.2)
            assert count() == 0

    serve(play)


def connect_and_leave(port: int, *, reset: bool) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(GET)
        assert b" 200 " in connection.recv(4096)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("reset", [False, True])
def test_a_closed_connection_is_freed_without_a_collection(reset: bool) -> None:
    def num_transports() -> int:
        return sum(type(one).__name__ == "_SelectorSocketTransport" for one in gc.get_objects())

    async def play(_app: App, port: int) -> None:
        gc.collect()
        before = num_transports()
        for _ in range(20):
            await asyncio.to_thread(connect_and_leave, port, reset=reset)
        for _ in range(100):  # the last one may still be closing
            if num_transports() == before:
                return
            await asyncio.sleep(0.1)
        pytest.fail(f"{num_transports() - before} closed connections are still in memory")

    gc.disable()
    try:
        serve(play)
    finally:
        gc.enable()
