"""Connections to a run that are not those of a worker, or whose messages are not those of one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from sparring.workers.handshake import PROTOCOL, installed_version, present
from sparring.workers.listener import MOST_HANDSHAKES
from sparring.workers.wire import frame, prefix_length, receive
from tests.workers.machine import KEY, Announced, listening_pool
from tests.workers.test_machines import connect, listening, received
from tests.workers.test_workers import CODE

HELLO = {"sparring": installed_version(), "protocol": PROTOCOL, "host": "node1", "is_spare": False}


async def send(address: str, *contents: bytes) -> list[Any]:
    """Send frames as a worker that has the key, each after one answer. Return the answers, until the run closes the
    connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answers: list[Any] = []
    try:
        await present(reader, writer, KEY.encode(), address)
        with contextlib.suppress(EOFError, OSError):
            for content in contents:
                writer.write(content)
                answers.append(await receive(reader))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return answers


def test_idle_connections_without_a_key_keep_no_worker_out(caplog: pytest.LogCaptureFixture) -> None:
    announced = Announced()
    with (
        listening(listening_pool(CODE, announced), announced) as address,
        contextlib.ExitStack() as opened,
    ):
        idle = [opened.enter_context(connect(address)) for _ in range(MOST_HANDSHAKES + 1)]
        for _ in range(2):
            (answer,) = asyncio.run(asyncio.wait_for(send(address, frame(HELLO)), 5))
            assert set(answer) == {"files", "left_out"}
        assert received(idle[0]) == b"", "the oldest is closed"
        idle[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            idle[-1].recv(1)
    warnings = [one.getMessage() for one in caplog.records if "have not sent a key" in one.getMessage()]
    assert len(warnings) == 1


@pytest.mark.parametrize("content", [prefix_length(b"[" * 100_000), (2**20 + 1).to_bytes(8, "big")])
def test_a_message_that_no_worker_sends_closes_its_connection(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    announced = Announced()
    with listening(listening_pool(CODE, announced), announced) as address:
        assert asyncio.run(asyncio.wait_for(send(address, content), 5)) == []
        (answer,) = asyncio.run(asyncio.wait_for(send(address, frame(HELLO)), 5))
    assert set(answer) == {"files", "left_out"}
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


def test_names_of_a_worker_cannot_add_lines_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    announced = Announced()
    last = frame({"has_files": True}) + frame({"process": "a\nprocess"})

    def lost() -> list[str]:
        return [one.getMessage() for one in caplog.records if "lost its connection" in one.getMessage()]

    with listening(listening_pool(CODE, announced), announced) as address:
        asyncio.run(asyncio.wait_for(send(address, frame({**HELLO, "host": "a\nhost"}), last), 5))
        deadline = time.monotonic() + 10
        while not lost():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    (line,) = lost()
    assert line.startswith(r"'a\nprocess' on 'a\nhost' (127.0.0.1) ")
