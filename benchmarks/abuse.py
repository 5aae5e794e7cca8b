"""Attacks a gateway that serves 64 honest episodes, one attack after the other.

Each attack runs for some seconds in a process of its own, with the key of an episode that begins and ends with the attack:
agents that are not trusted have such a key. Meanwhile, 64 honest agents run one episode after the other, each of 16 turns of 50
ms with pauses and a growing history, and /health is asked up to fifty times a second. No turn of theirs may be lost, and their
slowest turns are compared with those before the attacks, as is the memory of the gateway's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.gateway import CALL, LATENCY, SYSTEM, TOOL, Client, tokenizer_of
from benchmarks.report import options, report

HONEST = 64
PAUSE = 0.2
"""The time between the turns of an episode, for its tools."""
TURNS = 16
"""The turns of an episode."""
CHAT = "/v1/chat/completions"
TARGETS = {
    "honest turns lost": {"at_most": 0.0},
    "p99 of honest turns, by undisturbed, worst attack": {"at_most": 3.0},
    "/health, ms, p99, worst attack": {"at_most": 100.0},
    "memory after all attacks, by before": {"at_most": 1.1},
}


class Target:
    """The address that is attacked, with the key of an episode."""

    def __init__(self, base_url: str, key: str) -> None:
        self.host, port = base_url.removeprefix("http://").partition("/")[0].split(":")
        self.port, self.key = int(port), key
        self.num_sent = 0
        """The number of connections and requests that were sent."""

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.num_sent += 1
        return await asyncio.open_connection(self.host, self.port)

    def head(self, length: int | str, key: str | None = None) -> bytes:
        return (
            f"POST {CHAT} HTTP/1.1\r\nhost: {self.host}\r\nauthorization: Bearer {key or self.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        ).encode()

    async def post(self, body: bytes, key: str | None = None) -> None:
        """Send a request on a connection of its own, and wait up to ten seconds for the first bytes of the answer."""
        reader, writer = await self.connect()
        try:
            writer.write(self.head(len(body), key) + body)
            async with asyncio.timeout(10):
                await writer.drain()
                await reader.read(200)
        finally:
            writer.transport.abort()

    async def repeat(self, send: Callable[[], Awaitable[object]], num: int = 4) -> None:
        """Send again and again until the attack ends, `num` at a time."""

        async def loop() -> None:
            while True:
                with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    await send()
                await asyncio.sleep(0.005)

        await asyncio.gather(*(loop() for _ in range(num)))


def request_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}).encode()


async def big_lists(target: Target) -> None:
    body = b'{"model":"m","messages":[' + b"0," * 2_000_000 + b"0]}"
    await target.repeat(lambda: target.post(body))


async def list_below_the_limit(target: Target) -> None:
    body = b'{"model":"m","messages":[' + b"0," * 38_000 + b"0]}"
    await target.repeat(lambda: target.post(body))


async def many_keys(target: Target) -> None:
    body = request_body(**{f"key{number}": 1 for number in range(19_000)})
    await target.repeat(lambda: target.post(body))


async def many_bad_messages(target: Target) -> None:
    body = request_body(messages=[{"role": "user", "content": [{"type": "text", "text": 1}]}] * 4_000)
    await target.repeat(lambda: target.post(body))


async def many_messages(target: Target) -> None:
    body = request_body(messages=[{"role": "user", "content": f"message {number}"} for number in range(4_000)])
    await target.repeat(lambda: target.post(body), 2)


async def deep_json(target: Target) -> None:
    body = b'{"model":"m","messages":' + b"[" * 4_000_000
    await target.repeat(lambda: target.post(body))


async def long_text(target: Target) -> None:
    body = request_body(messages=[{"role": "user", "content": "ab cd " * 1_300_000}])
    await target.repeat(lambda: target.post(body), 2)


async def hostile_schemas(target: Target) -> None:
    schema: Any = {"type": "string", "pattern": "(a+)+$" * 50}
    for _ in range(40):
        schema = {"anyOf": [{"type": "object", "properties": {"a": schema}}] * 2}
    nested: Any = {"type": "object"}
    for _ in range(80):
        nested = {"type": "object", "properties": {"a": nested, "b": {"enum": ["x" * 100] * 5}}}
    shared = {"type": "object", "properties": {f"p{number}": nested for number in range(8)}}
    tools = [{"type": "function", "function": {"name": f"f{number}", "parameters": shared}} for number in range(8)]
    forms = [
        request_body(tools=tools),
        request_body(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": nested}}),
        request_body(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "#"}}}),
    ]
    numbers = iter(range(10**9))
    await target.repeat(lambda: target.post(forms[next(numbers) % len(forms)]), 2)


async def slow_headers(target: Target) -> None:
    async def one() -> None:
        _, writer = await target.connect()
        for byte in b"GET /health HTTP/1.1\r\nX-Slow: " + b"x" * 1000:
            writer.write(bytes([byte]))
            await asyncio.sleep(1.0)

    await target.repeat(one, 1000)


async def slow_bodies(target: Target) -> None:
    async def one() -> None:
        reader, writer = await target.connect()
        writer.write(target.head(1_000_000) + b'{"model":')
        await reader.read(200)
        writer.transport.abort()

    await target.repeat(one, 200)


async def endless_headers(target: Target) -> None:
    async def one() -> None:
        _, writer = await target.connect()
        try:
            writer.write(b"GET /health HTTP/1.1\r\nX: ")
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
        finally:
            writer.transport.abort()

    await target.repeat(one)


async def connection_flood(target: Target) -> None:
    held: list[asyncio.StreamWriter] = []

    async def one() -> None:
        held.append((await target.connect())[1])
        if len(held) > 1500:
            held.pop(0).transport.abort()

    await target.repeat(one, 8)


async def wrong_keys(target: Target) -> None:
    body = request_body(messages=[{"role": "user", "content": "x" * 7_000_000}])
    await target.repeat(lambda: target.post(body, "sk-guess"))


async def dropped_streams(target: Target) -> None:
    body = request_body(stream=True)

    async def one() -> None:
        reader, writer = await target.connect()
        writer.write(target.head(len(body)) + body)
        await reader.read(100)
        writer.transport.abort()

    await target.repeat(one, 16)


async def answers_that_are_not_read(target: Target) -> None:
    body = request_body(stream=True)

    async def one() -> None:
        _, writer = await target.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(50):
            writer.write(target.head(len(body)) + body)
        await asyncio.sleep(5)
        writer.transport.abort()

    await target.repeat(one, 8)


ATTACKS: Mapping[str, Callable[[Target], Awaitable[None]]] = {
    one.__name__.replace("_", " "): one
    for one in (
        big_lists,
        list_below_the_limit,
        many_keys,
        many_bad_messages,
        many_messages,
        deep_json,
        long_text,
        hostile_schemas,
        slow_headers,
        slow_bodies,
        endless_headers,
        connection_flood,
        wrong_keys,
        dropped_streams,
        answers_that_are_not_read,
    )
}


def attack(pipe: Connection, base_url: str) -> None:
    """Run the attacks that the pipe names, each for the given seconds, and reply with the number of requests. The process has
    a lower priority, since attackers do not compute on the gateway's machine."""
    os.nice(10)

    async def run(name: str, seconds: float, key: str) -> int:
        target = Target(base_url, key)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ATTACKS[name](target)
        return target.num_sent

    while (asked := pipe.recv()) is not None:
        pipe.send(asyncio.run(run(*asked)))


def serve_episodes(pipe: Connection, folder: str, smoke: bool) -> None:
    """Serve a gateway, and send its base URL. After that, `True` opens an episode and is answered with its key, a key closes
    its episode, and `None` ends the process."""
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
        engine = ScriptedEngine(lambda _: [*answer, stop], seconds=lambda _: LATENCY, max_context_tokens=32_768)
        sampling = Sampling(max_tokens=len(answer) + 1)
        sessions: dict[str, Session] = {}
        with Ledger(Path(folder) / "ledger.sqlite") as ledger:
            async with Gateway() as gateway:
                pipe.send(gateway.base_url)
                while (asked := await asyncio.to_thread(pipe.recv)) is not None:
                    if asked is not True:
                        sessions.pop(asked).close()
                        engine.requests.clear()  # which it keeps for tests
                        pipe.send(None)
                        continue
                    id = f"episode-{time.monotonic_ns()}"
                    ledger.plan_nowait(id, task_id="t", attempt=0)
                    ledger.advance_nowait(id, RolloutState.LEASED)
                    ledger.advance_nowait(id, RolloutState.RUNNING)
                    identity = EpisodeIdentity(id)
                    session = Session(identity, engine=engine, chat=chat, sampling=sampling, ledger=ledger)
                    key = gateway.register(session).api_key
                    sessions[key] = session
                    pipe.send(key)

    asyncio.run(run())


class Server:
    """The gateway's process."""

    def __init__(self, context: Any, folder: str, smoke: bool) -> None:
        self._pipe, there = context.Pipe()
        self._lock = threading.Lock()
        self.process = context.Process(target=serve_episodes, args=(there, folder, smoke))
        self.process.start()
        self.base_url: str = self._pipe.recv()

    def ask(self, asked: Any) -> Any:
        with self._lock:
            self._pipe.send(asked)
            return self._pipe.recv()

    def stop(self) -> None:
        self._pipe.send(None)
        self.process.join(10)

    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


async def play(server: Server, number: int, until: Callable[[], bool], latencies: list[float]) -> None:
    """Run honest episodes until the phase ends. Raises RuntimeError for a turn that is refused."""
    await asyncio.sleep(PAUSE * (number % 16) / 16)
    first = number % TURNS  # so that not all episodes have the same length at the same time
    while not until():
        key = await asyncio.to_thread(server.ask, True)
        client = Client(server.base_url, key)
        await client.open()
        user = f"Inspect part {number} at {time.monotonic_ns()}."
        messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
        for turn in range(first, TURNS):
            began = time.perf_counter()
            answer = await client.post(json.dumps({"model": "policy", "messages": messages, "tools": [TOOL]}).encode())
            latencies.append(time.perf_counter() - began)
            message = answer["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": f"reading {turn}: 4.2"}
            messages += [message, result]
            await asyncio.sleep(PAUSE)
            if until():
                break
        client.close()
        await asyncio.to_thread(server.ask, key)
        first = 0


def watch_health(pipe: Connection, base_url: str) -> None:
    """For each number of seconds from the pipe, ask /health on a new connection up to fifty times a second for so long, and
    reply with the seconds of each answer. It is a process of its own, so that the honest agents do not delay it."""
    host, port = base_url.removeprefix("http://").partition("/")[0].split(":")
    while (seconds := pipe.recv()) is not None:
        ends, latencies = time.monotonic() + seconds, list[float]()
        while time.monotonic() < ends:
            began = time.perf_counter()
            with socket.create_connection((host, int(port)), 10) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                answer = connection.recv(4096)
            if b" 200 " not in answer:
                raise RuntimeError(f"/health answered {answer!r}")
            latencies.append(time.perf_counter() - began)
            time.sleep(0.02)
        pipe.send(latencies)


async def phase(
    server: Server, watcher: Connection, honest: int, seconds: float
) -> tuple[list[float], list[float], int]:
    """Run honest agents for some seconds. Return the seconds of turns and of /health, and the number of agents that failed."""
    ends = time.monotonic() + seconds
    turns: list[float] = []
    watcher.send(seconds)

    def is_over() -> bool:
        return time.monotonic() > ends

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(honest))
    playing = [play(server, number, is_over, turns) for number in range(honest)]
    ended = await asyncio.gather(*playing, return_exceptions=True)
    failed = [one for one in ended if isinstance(one, BaseException)]
    for error in failed[:3]:
        print(f"an honest client failed: {error!r}", file=sys.stderr)
    return turns, watcher.recv(), len(failed)


def p99_ms(seconds: list[float]) -> float:
    return 1000 * quantiles(seconds, n=100)[98] if len(seconds) > 1 else 1000 * max(seconds, default=0.0)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS), metavar="NAME")
    arguments = parser.parse_args()
    seconds, honest = (1.0, 8) if arguments.smoke else (arguments.seconds, HONEST)
    attacks = ["big lists", "slow headers"] if arguments.smoke else arguments.attacks
    context: Any = multiprocessing.get_context("fork" if arguments.smoke else "spawn")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(context, folder, arguments.smoke)
        orders, ordered = context.Pipe()
        attacker = context.Process(target=attack, args=(ordered, server.base_url), daemon=True)
        attacker.start()
        watcher, watched = context.Pipe()
        context.Process(target=watch_health, args=(watched, server.base_url), daemon=True).start()

        def run_phase() -> tuple[list[float], list[float], int]:
            return asyncio.run(phase(server, watcher, honest, seconds))

        run_phase()  # until caches are filled
        quiet, health, lost = run_phase()
        before = server.memory_mib()
        undisturbed = p99_ms(quiet)
        rows.append({"attack": "none", "turns": len(quiet), "p99, ms": undisturbed, "by undisturbed": 1.0})
        rows[0] |= {"/health p99, ms": p99_ms(health), "lost": lost, "sent": 0, "memory, MiB": before}
        for name in attacks:
            key = server.ask(True)
            orders.send((name, seconds, key))
            turns, health, lost = run_phase()
            sent = orders.recv()
            server.ask(key)
            row = {"attack": name, "turns": len(turns), "p99, ms": p99_ms(turns)}
            row |= {"by undisturbed": p99_ms(turns) / undisturbed, "/health p99, ms": p99_ms(health), "lost": lost}
            rows.append({**row, "sent": sent, "memory, MiB": server.memory_mib()})
            print({key: round(value, 2) if isinstance(value, float) else value for key, value in rows[-1].items()})
        orders.send(None)
        run_phase()
        watcher.send(None)
        after = server.memory_mib()
        server.stop()
    attacked = rows[1:]
    figures = {
        "honest turns lost": float(sum(row["lost"] for row in rows)),
        "p99 of honest turns, by undisturbed, worst attack": max(row["by undisturbed"] for row in attacked),
        "/health, ms, p99, worst attack": max(row["/health p99, ms"] for row in attacked),
        "memory after all attacks, by before": after / before,
    }
    sides = {"honest turns": sum(row["turns"] for row in rows), "attacks": sum(row["sent"] for row in attacked)}
    return report(
        "abuse", rows, figures=figures, targets=TARGETS, path=arguments.json, sides=sides, smoke=arguments.smoke
    )


if __name__ == "__main__":
    sys.exit(main())
