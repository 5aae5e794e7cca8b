"""An endpoint whose process is killed and comes back, as an engine sees it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from sparring.engines.openai import OpenAIEngine
from sparring.errors import InfrastructureError
from sparring.types import MessageAnswer, MessageRequest, Sampling

SERVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        # One write: print writes the end of the line by itself, and another thread's text comes between.
        sys.stdout.write("asked\\n")
        sys.stdout.flush()
        time.sleep(float(sys.argv[2]))
        message = {"role": "assistant", "content": sys.argv[3]}
        body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": None}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("ready", flush=True)
server.serve_forever()
"""
RECOVERY_SECONDS = 15.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Endpoint:
    """A server in a process of its own."""

    def __init__(self, port: int, *, seconds: float, text: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port), str(seconds), text], stdout=subprocess.PIPE, text=True
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


async def answers(engine: OpenAIEngine, num: int) -> list[MessageAnswer]:
    asked = MessageRequest(
        session_id="s", messages=({"role": "user", "content": "?"},), tools=(), sampling=Sampling(max_tokens=8)
    )
    return await asyncio.gather(*(engine.answer(asked) for _ in range(num)))


@pytest.mark.parametrize("state", ["starting", "idle", "answering"])
def test_what_an_endpoint_that_is_killed_owes_is_answered_when_it_is_back(state: str) -> None:
    port = free_port()
    with ExitStack() as stack:

        def endpoint(*, seconds: float, text: str) -> Endpoint:
            started = Endpoint(port, seconds=seconds, text=text)
            stack.callback(started.kill)
            return started

        async def main() -> tuple[list[MessageAnswer], float]:
            engine = OpenAIEngine(f"http://127.0.0.1:{port}/v1", "m")
            try:
                if state != "starting":
                    first = endpoint(seconds=600 if state == "answering" else 0.0, text="before")
                    if state == "idle":
                        # Its connections stay open.
                        assert {one.message["content"] for one in await answers(engine, 4)} == {"before"}
                    else:
                        early = asyncio.ensure_future(answers(engine, 4))
                        assert [await asyncio.to_thread(first.line) for _ in range(4)] == ["asked"] * 4
                    first.kill()
                if state != "answering":
                    early = asyncio.ensure_future(answers(engine, 4))
                await asyncio.sleep(1.0)
                assert not early.done()
                await asyncio.to_thread(endpoint, seconds=0.0, text="after")
                back = time.monotonic()
                return await early, time.monotonic() - back
            finally:
                await engine.close()

        found, seconds = asyncio.run(main())
    assert [one.message["content"] for one in found] == ["after"] * 4
    print(f"endpoint, {state}: {seconds:.2f} s from its return until all is answered")  # noqa: T201 - pytest -rP shows it
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert seconds < RECOVERY_SECONDS * busy


def test_one_that_does_not_come_back_is_an_outage_after_as_many_tries_as_bridge_half_a_minute() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def main() -> None:
        engine = OpenAIEngine(f"http://127.0.0.1:{free_port()}/v1", "m", sleep=sleep)
        try:
            await answers(engine, 1)
        finally:
            await engine.close()

    with pytest.raises(InfrastructureError, match="did not answer: ConnectError"):
        asyncio.run(main())
    # 0.5, 1, 2, 4, 8 and twice 10 seconds, each less a quarter at most: one that is back is asked within 10.
    assert 0.75 * 35.5 <= sum(pauses) <= 35.5
    assert max(pauses) <= 10.0
