"""Measures long streamed answers: the CPU time of the gateway by length, and the waiting time of other episodes.

The policy is a script that writes about one token per millisecond. The tokenizer, the sessions and HTTP are real, but
turns are not recorded. The gateway runs in a separate process and measures its CPU time. The client first reads one
stream alone to measure the CPU time. It then reads a second stream while another episode requests short answers one
after another. The waiting times for these answers are compared with those before any stream started.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from benchmarks.gateway import Client, tokenizer_of
from benchmarks.report import options, report

PAUSE = 0.0005
"""The requested seconds between tokens. The event loop takes about a millisecond."""
TEXTS = {
    "prose": "The inspector looks the part up, compares its readings with the limits, and then decides what is to be done. ",
    "markup": "<tr><td>A12</td><td>4.2 -> 4.7</td></tr> ",
    "reasoning": "so the reading of the gauge is above its limit, and the part goes back; ",
}
TARGETS = {
    "processor time of all tokens over that of half": {"at_most": 2.5},
    "others' wait beside a stream over alone": {"at_most": 3.0},
}


def serve(pipe: Connection, smoke: bool) -> None:
    """Run a gateway. Each message (text, number of tokens) opens an episode with an answer of that many tokens.

    The gateway sends back the base URL, the key and its CPU seconds so far.
    """
    from sparring.chat import TemplateChat
    from sparring.engines.scripted import ScriptedEngine
    from sparring.gateway import Gateway
    from sparring.sessions import EpisodeIdentity, Session
    from sparring.types import Sampling

    async def run() -> None:
        tokenizer = tokenizer_of(smoke)
        chat = TemplateChat(tokenizer)
        stop = min(chat.stop_ids)

        def tokens_of(kind: str, num_tokens: int) -> list[int]:
            text = TEXTS[kind] * (num_tokens // 8 + 1)
            opened = "<think>" if kind == "reasoning" else ""
            return [*tokenizer.encode(opened + text, add_special_tokens=False)[: max(1, num_tokens)], stop]

        async with Gateway() as gateway:
            while (asked := await asyncio.to_thread(pipe.recv)) is not None:
                answer = tokens_of(*asked)
                engine = ScriptedEngine(
                    lambda _, answer=answer: answer,
                    max_context_tokens=10**6,
                    sleep=lambda seconds: asyncio.sleep(seconds or PAUSE),
                )
                session = Session(
                    EpisodeIdentity("episode"), engine=engine, chat=chat, sampling=Sampling(max_tokens=10**6)
                )
                pipe.send((gateway.base_url, gateway.register(session).api_key, time.process_time()))

    asyncio.run(run())


class Server:
    """The gateway's process."""

    def __init__(self, *, smoke: bool) -> None:
        self._pipe, there = multiprocessing.Pipe()
        # A smoke run forks, because importing everything again would take longer than the measurement.
        context: Any = multiprocessing.get_context("fork" if smoke else "spawn")
        self._process = context.Process(target=serve, args=(there, smoke))
        self._process.start()

    def episode(self, kind: str, num_tokens: int) -> tuple[str, str, float]:
        self._pipe.send((kind, num_tokens))
        if not self._pipe.poll(300):
            raise TimeoutError("the gateway did not answer within five minutes")
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(30)


async def streamed(base_url: str, key: str) -> int:
    """Read a streamed answer and return the number of its bytes."""
    client = Client(base_url, key)
    await client.open()
    body: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "Inspect."}], "stream": True}
    await client.send(json.dumps(body).encode())
    end, received = b"", 0
    while b"[DONE]" not in end:
        part = await client.some()
        if not part:
            raise RuntimeError("the stream broke off")
        end, received = end[-16:] + part, received + len(part)
    client.close()
    return received


async def waits(base_url: str, key: str, until: asyncio.Event) -> list[float]:
    """Request short answers one after another, and return the seconds of each."""
    client, seconds = Client(base_url, key), []
    await client.open()
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "And you?"}]}).encode()
    while not until.is_set():
        began = time.perf_counter()
        await client.post(body)
        seconds.append(time.perf_counter() - began)
        await asyncio.sleep(0.02)
    client.close()
    return seconds


async def measure_waits(base_url: str, key: str, stream: asyncio.Future[Any]) -> tuple[float, int]:
    """Return the median waiting time of the other episode until `stream` is done, and the number of its answers."""
    over = asyncio.Event()
    stream.add_done_callback(lambda _: over.set())
    seconds = await waits(base_url, key, over)
    await stream
    return median(seconds), len(seconds)


def measured(server: Server, kind: str, num_tokens: int) -> dict[str, Any]:
    base_url, other, _ = server.episode("prose", 0)
    alone, answers_alone = asyncio.run(_alone(base_url, other))
    base_url, key, began = server.episode(kind, num_tokens)
    started = time.perf_counter()
    received = asyncio.run(streamed(base_url, key))
    seconds = time.perf_counter() - started
    _, key, ended = server.episode(kind, num_tokens)
    meanwhile, answers_during = asyncio.run(_together(base_url, key, other))
    return {
        "text": kind,
        "tokens": num_tokens,
        "processor seconds": ended - began,
        "seconds": seconds,
        "another's wait alone, ms": 1000 * alone,
        "beside the stream, ms": 1000 * meanwhile,
        "bytes": received,
        "answers alone": answers_alone,
        "answers beside": answers_during,
    }


async def _alone(base_url: str, key: str) -> tuple[float, int]:
    return await measure_waits(base_url, key, asyncio.ensure_future(asyncio.sleep(1.0)))


async def _together(base_url: str, key: str, other: str) -> tuple[float, int]:
    return await measure_waits(base_url, other, asyncio.ensure_future(streamed(base_url, key)))


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--tokens", type=int, default=20_000)
    arguments = parser.parse_args()
    most = 400 if arguments.smoke else arguments.tokens
    rows = []
    server = Server(smoke=arguments.smoke)
    try:
        for kind in ["prose"] if arguments.smoke else TEXTS:
            rows += [measured(server, kind, num_tokens) for num_tokens in (most // 4, most // 2, most)]
    finally:
        server.close()
    growth = [
        longer["processor seconds"] / shorter["processor seconds"]
        for shorter, longer in zip(rows[1::3], rows[2::3], strict=True)
    ]
    figures = {
        "processor time of all tokens over that of half": max(growth),
        "processor ms a token": 1000 * max(row["processor seconds"] / row["tokens"] for row in rows[2::3]),
        "others' wait beside a stream over alone": median(
            row["beside the stream, ms"] / row["another's wait alone, ms"] for row in rows
        ),
    }
    sides = {
        "streams": sum(row["bytes"] for row in rows),
        "others, alone": sum(row["answers alone"] for row in rows),
        "others, beside the stream": sum(row["answers beside"] for row in rows),
    }
    return report(
        "streaming", rows, figures=figures, targets=TARGETS, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
