"""Measures the gateway under load, compared with a bare server. Every turn is on disk before it is answered.

The policy is a script that takes 50 ms per turn. The tokenizer, the template, the keys, the matching of growing
histories and the ledger are real. The bare server is a Starlette app that reads the same request bodies, also waits 50
ms, and commits the same number of bytes through the same group commit. The two servers run alternately in separate
processes. The driver runs in a third process. Figures are medians over the rounds."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.report import options, report

LATENCY = 0.05
TARGETS = {
    "turns/s": {"at_least": 400.0},
    "p99 of a turn, ms": {"at_most": 900.0},
    "turns/s beside the bare server": {"at_least": 0.5},
    "turns lost or doubled": {"at_most": 0.0},
    "slots left after dropped streams": {"at_most": 0.0},
}
COLUMNS = {"turns/s": "turns/s", "p50, ms": "p50", "p99, ms": "p99"}
SYSTEM = (
    "You follow the inspection desk's procedure: look the part up, compare its readings with the limits, then decide. "
    * 4
)
TOOL = {
    "type": "function",
    "function": {
        "name": "reading",
        "description": "A reading of a part.",
        "parameters": {"type": "object", "properties": {"part": {"type": "string"}, "gauge": {"type": "integer"}}},
    },
}
CALL = '<tool_call>{"name": "reading", "arguments": {"part": "A12", "gauge": 7}}</tool_call>'


def tokenizer_of(smoke: bool) -> Any:
    """Return SmolLM2's tokenizer, which is downloaded once, or a byte tokenizer in a smoke run."""
    if smoke:
        from sparring.chat import ByteTokenizer

        return ByteTokenizer()
    from transformers import AutoTokenizer

    from sparring.models.smollm2 import ensure_converted

    return AutoTokenizer.from_pretrained(ensure_converted())


def serve_gateway(pipe: Connection, folder: str, num_episodes: int, smoke: bool) -> None:
    """Serve our gateway, with a session and a key for each episode.

    The process sends the base URL and the keys. After that, it answers requests for the number of turns in the ledger.
    """
    from sparring.chat import TemplateChat
    from sparring.engines.scripted import ScriptedEngine
    from sparring.gateway import Gateway
    from sparring.ledger import Ledger, RolloutState
    from sparring.sessions import EpisodeIdentity, Session
    from sparring.types import Sampling

    async def run() -> None:
        tokenizer = tokenizer_of(smoke)
        answer = tokenizer.encode(CALL, add_special_tokens=False)
        chat = TemplateChat(tokenizer)
        stop = min(chat.stop_ids)
        engine = ScriptedEngine(
            lambda _: [*answer, stop],
            seconds=lambda _: LATENCY,
            max_context_tokens=32_768,
        )
        with Ledger(Path(folder) / "ledger.sqlite") as ledger:
            async with Gateway() as gateway:
                sessions, keys = [], []
                for number in range(num_episodes):
                    id = f"episode-{number}"
                    ledger.plan_nowait(id, task_id="t", attempt=0)
                    ledger.advance_nowait(id, RolloutState.LEASED)
                    ledger.advance_nowait(id, RolloutState.RUNNING)
                    session = Session(
                        EpisodeIdentity(id),
                        engine=engine,
                        chat=chat,
                        sampling=Sampling(max_tokens=len(answer) + 1),
                        ledger=ledger,
                    )
                    sessions.append(session)
                    keys.append(gateway.register(session).api_key)
                pipe.send((gateway.base_url, keys))
                await asyncio.to_thread(pipe.recv)
                kept = [turn for session in sessions for turn in session.turns]
                recorded = [turn for session in sessions for turn in ledger.load_turns(session.id)]
                spliced = sum(turn.parent is not None for turn in kept)
                pipe.send((len(kept), len(recorded), spliced, asyncio.all_tasks().__len__()))

    asyncio.run(run())


def serve_bare(pipe: Connection, folder: str, num_episodes: int, _smoke: bool) -> None:
    """Serve a Starlette app that only reads a request, waits, commits and answers."""
    import sqlite3

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from sparring.ledger.writer import GroupCommitWriter
    from sparring.web.listener import Listener

    async def run() -> None:
        db = sqlite3.connect(Path(folder) / "bare.sqlite", isolation_level=None, check_same_thread=False)
        db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE turns (content BLOB);")
        writer, content = GroupCommitWriter(db), b"x" * 800
        call = {
            "id": "c",
            "type": "function",
            "function": {"name": "reading", "arguments": '{"part": "A12", "gauge": 7}'},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}

        async def answer(request: Request) -> JSONResponse:
            body = json.loads(await request.body())
            await asyncio.sleep(LATENCY)
            await asyncio.wrap_future(writer.submit(lambda db: db.execute("INSERT INTO turns VALUES (?)", (content,))))
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}
            return JSONResponse({"id": "x", "object": "chat.completion", "model": body["model"], "choices": [choice]})

        listener = Listener(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])]), "127.0.0.1", 0)
        await listener.start()
        pipe.send((listener.base_url, ["key"] * num_episodes))
        await asyncio.to_thread(pipe.recv)
        count = db.execute("SELECT count(*) FROM turns").fetchone()[0]
        pipe.send((count, count, 0, 0))
        await listener.stop()
        writer.close()

    asyncio.run(run())


class Client:
    """A persistent HTTP/1.1 connection. It uses no client library, because a client library would take half of the
    measured time."""

    def __init__(self, base_url: str, key: str) -> None:
        self._host, port = base_url.removeprefix("http://").partition("/")[0].split(":")
        self._port, self._key = int(port), key

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def post(self, body: bytes) -> dict[str, Any]:
        await self.send(body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status, length = int(head.split(b" ", 2)[1]), 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        content = await self._reader.readexactly(length)
        if status != 200:
            raise RuntimeError(f"status {status}: {content[:200]!r}")
        return json.loads(content)

    async def send(self, body: bytes) -> None:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._host}\r\nauthorization: Bearer {self._key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def some(self) -> bytes:
        return await self._reader.read(256)

    def close(self) -> None:
        self._writer.close()


async def episode(base_url: str, key: str, number: int, num_turns: int, latencies: list[float]) -> None:
    """Run an agent that sends its growing history and answers each call with a tool result."""
    client = Client(base_url, key)
    await client.open()
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Inspect part {number}."},
    ]
    for turn in range(num_turns):
        body = json.dumps({"model": "policy", "messages": messages, "tools": [TOOL]}).encode()
        began = time.perf_counter()
        answer = await client.post(body)
        latencies.append(time.perf_counter() - began)
        message = answer["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": f"reading {turn}: 4.2"}
        messages += [message, result]
    client.close()


async def streams(base_url: str, keys: list[str]) -> None:
    """Open streams at the same time, and disconnect three of ten after their first bytes."""

    async def one(number: int, key: str) -> None:
        client = Client(base_url, key)
        await client.open()
        body = {"model": "policy", "messages": [{"role": "user", "content": f"Inspect {number}."}], "stream": True}
        await client.send(json.dumps(body).encode())
        got = await client.some()
        while number % 10 >= 3 and b"[DONE]" not in got and (more := await client.some()):
            got += more
        client.close()

    await asyncio.gather(*(one(number, key) for number, key in enumerate(keys)))


async def load(base_url: str, keys: list[str], num_turns: int) -> tuple[float, list[float]]:
    """Return the total seconds, and the seconds of each turn."""
    latencies: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(episode(base_url, key, n, num_turns, latencies) for n, key in enumerate(keys)))
    return time.perf_counter() - began, latencies


def measured(
    serve: Callable[[Connection, str, int, bool], None],
    num_episodes: int,
    num_turns: int,
    then: Callable[[str, list[str]], Coroutine[Any, Any, None]] | None = None,
    *,
    smoke: bool = False,
) -> dict[str, float]:
    """Serve in a separate process, and send requests from this process."""
    here, there = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        # A smoke run forks, because importing everything again would take longer than the measurement.
        context: Any = multiprocessing.get_context("fork" if smoke else "spawn")
        process = context.Process(target=serve, args=(there, folder, num_episodes, smoke))
        process.start()
        if not here.poll(120):
            raise TimeoutError("the server did not start within two minutes")
        base_url, keys = here.recv()
        asyncio.run(load(base_url, keys[:8], 2)) if then is None else None
        seconds, latencies = asyncio.run(load(base_url, keys, num_turns))
        if then is not None:
            asyncio.run(then(base_url, keys[:128]))
            time.sleep(1.0)
        here.send("how many?")
        kept, recorded, spliced, tasks = here.recv()
        process.join(10)
    cuts = quantiles(latencies, n=100)
    return {
        "turns/s": len(latencies) / seconds,
        "p50": 1000 * cuts[49],
        "p99": 1000 * cuts[98],
        "answered": len(latencies),
        "kept": kept,
        "recorded": recorded,
        "spliced": spliced,
        "tasks": tasks,
    }


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    episodes, turns, rounds = (8, 3, 1) if arguments.smoke else (arguments.episodes, arguments.turns, arguments.rounds)
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(measured(serve_gateway, episodes, turns, smoke=arguments.smoke))
        bare.append(measured(serve_bare, episodes, turns, smoke=arguments.smoke))
    dropped = measured(serve_gateway, episodes, 1, streams, smoke=arguments.smoke)
    rows = [
        {"server": name, **{shown: median(one[key] for one in rounds) for shown, key in COLUMNS.items()}}
        for name, rounds in (("gateway", ours), ("bare", bare))
    ]
    # Only a session reuses the tokens of earlier turns. Another server in place of the gateway would have no spliced
    # turns.
    sides = {"gateway": min(one["spliced"] for one in ours), "bare": min(one["recorded"] for one in bare)}
    figures = {
        "turns/s": rows[0]["turns/s"],
        "p99 of a turn, ms": rows[0]["p99, ms"],
        "turns/s beside the bare server": median(
            mine["turns/s"] / other["turns/s"] for mine, other in zip(ours, bare, strict=True)
        ),
        "turns lost or doubled": max(abs(one["answered"] + 16 - one["recorded"]) for one in ours),
        "slots left after dropped streams": max(0.0, dropped["tasks"] - ours[-1]["tasks"]),
    }
    return report(
        "gateway", rows, figures=figures, targets=TARGETS, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
