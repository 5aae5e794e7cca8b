"""Every server refuses requests without a key, with a wrong one, with an expired one, and with one for something else."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.engines.server import engine_app
from sparring.gateway import Gateway, ModelServer, Version, Versions, WorkQueue
from sparring.gateway.app import create_app
from sparring.gateway.versions import VERSIONS
from sparring.report.live import LivePage, live_app
from sparring.serving.record import Recording
from sparring.training.server import learner_app
from sparring.types import Sampling
from sparring.web.audit import AuditLog
from sparring.web.gate import Gate
from sparring.web.keys import PERMISSIONS, Keys, NamedKey, hash_key, write_keys
from sparring.web.listener import Listener
from tests.contracts import cases
from tests.gateway.builders import CHAT, USER, session
from tests.report.stored_run import StoredRun, episode

ROOT = Path(__file__).parents[2]
CHAT_ROUTE = ("POST", "/v1/chat/completions", {"model": "default", "messages": [USER]})
PAST = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Served:
    """A running server, one of its routes, and the keys with which it is asked."""

    address: str
    method: str
    path: str
    body: Any
    keys: Mapping[str, str]


def make_gate(folder: Path, needs: str) -> tuple[Gate, dict[str, str]]:
    """Return the gate of a file with keys, and keys by what is right or wrong with them."""
    other = "read" if needs != "read" else "complete"
    named = [
        NamedKey(name="right", hash=hash_key("sk-right"), scope=(needs,)),  # type: ignore[arg-type]
        NamedKey(name="expired", hash=hash_key("sk-expired"), scope=PERMISSIONS, expires=PAST),
        NamedKey(name="other", hash=hash_key("sk-other"), scope=(other,)),
    ]
    write_keys(folder / "keys.toml", named)
    keys = {"right": "sk-right", "expired": "sk-expired", "wrong scope": "sk-other"}
    return Gate("server", Keys.of_file(folder / "keys.toml"), audit=AuditLog(folder / "audit.jsonl")), keys


class Endless:
    """An engine that samples without end."""

    def __init__(self) -> None:
        self._engine = ScriptedEngine([], encode=ByteTokenizer().encode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def sample(self, request: Any, on_token: Any = None) -> Any:
        while True:
            on_token(ord("a"))
            await asyncio.sleep(0.01)


def read_text(path: Path) -> str:
    return path.read_text()


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("this did not happen within 10 s")


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    listener = Listener(app, "127.0.0.1", 0)
    await listener.start()
    try:
        yield listener.address
    finally:
        await listener.stop()


def served_versions(needs: str, route: tuple[str, str, Any]) -> Callable[[Path], AbstractAsyncContextManager[Served]]:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Served]:
        gate, keys = make_gate(folder, needs)
        versions = Versions([Version("m", ScriptedEngine(["a"] * 9, encode=ByteTokenizer().encode))])
        async with ModelServer(versions=versions, chat=CHAT, sampling=Sampling(), gate=gate) as server:
            yield Served(server.base_url.removesuffix("/v1"), *route, keys)

    return opened


@asynccontextmanager
async def recorded(folder: Path) -> AsyncIterator[Served]:
    gate, keys = make_gate(folder, "complete")
    engine = ScriptedMessages(["a"] * 9, name="m")
    async with (
        Recording(folder / "out", engine, model="m") as recording,
        listening(create_app(recording, gate=gate)) as address,
    ):
        yield Served(address, *CHAT_ROUTE, keys)


@asynccontextmanager
async def queue(folder: Path) -> AsyncIterator[Served]:
    gate, keys = make_gate(folder, "work")
    async with Gateway(queue=WorkQueue(gate)) as gateway:
        address = gateway.base_url.removesuffix("/v1")
        yield Served(address, "POST", "/v1/queue/lease", {"wait_seconds": 0}, keys)


@asynccontextmanager
async def episodes(_folder: Path) -> AsyncIterator[Served]:
    async with Gateway(queue=WorkQueue("sk-worker")) as gateway, session(["a"] * 9) as playing:
        async with session(["a"]) as ended:
            expired = gateway.register(ended).api_key
        keys = {"right": gateway.register(playing).api_key, "expired": expired, "wrong scope": "sk-worker"}
        yield Served(gateway.base_url.removesuffix("/v1"), *CHAT_ROUTE, keys)


@asynccontextmanager
async def metrics(folder: Path) -> AsyncIterator[Served]:
    prometheus = pytest.importorskip("sparring.tracking.prometheus")
    gate, keys = make_gate(folder, "read")
    tracker = await asyncio.to_thread(
        lambda: prometheus.PrometheusTracker("127.0.0.1:0", run="r", gate=gate, linger_seconds=0.0)
    )
    try:
        yield Served(tracker.address, "GET", "/metrics", None, keys)
    finally:
        await asyncio.to_thread(tracker.close)


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[Served]:
    gate, keys = make_gate(folder, "read")
    run = StoredRun(folder)
    run.log({1: {"rollout/reward/mean": 0.5}}, {"train-1": [episode("train/1/a/0.0", reward=1.0, score=1.0)]})
    live = LivePage(run.path, {}, on_problem=print)
    try:
        async with listening(live_app(live, gate)) as address:
            yield Served(address, "GET", "/version", None, keys)
    finally:
        live.close()


def part(make: Callable[[str], Any], path: str) -> Callable[[Path], AbstractAsyncContextManager[Served]]:
    """An engine or a learner: a run has the one key of SPARRING_API_KEY, and no key of other servers works."""

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Served]:
        _, keys = make_gate(folder, "complete")
        async with listening(make("sk-of-the-run")) as address:
            yield Served(address, "GET", path, None, {**keys, "right": "sk-of-the-run"})
        with warnings.catch_warnings(action="ignore"):
            gc.collect()  # a learner's folder is deleted with it, with a warning

    return opened


def make_engine(key: str) -> Any:
    return engine_app(cases.torch_engine(), api_key=key)


def make_learner(key: str) -> Any:
    return learner_app(cases.torch_learner(), api_key=key)


SERVERS: Mapping[str, tuple[Callable[[Path], AbstractAsyncContextManager[Served]], int]] = {
    "serve": (served_versions("complete", CHAT_ROUTE), 403),
    "serve, messages": (served_versions("complete", ("POST", "/v1/messages", {})), 403),
    "serve, versions": (served_versions("admin", ("GET", VERSIONS, None)), 403),
    "record": (recorded, 403),
    "queue": (queue, 403),
    "gateway": (episodes, 401),
    "metrics": (metrics, 403),
    "watch": (watched, 403),
    "engine": (part(make_engine, "/v1/engine"), 401),
    "learner": (part(make_learner, "/v1/learner"), 401),
}
"""The servers, and the status for a key of another scope. The last two, and the gateway, know no other scopes."""


@pytest.mark.parametrize("name", SERVERS)
def test_each_server_admits_the_right_key_only(name: str, tmp_path: Path) -> None:
    opened, wrong_scope = SERVERS[name]

    async def ask(served: Served, key: str | None) -> int:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient() as client:
            url = f"{served.address}{served.path}"
            return (await client.request(served.method, url, json=served.body, headers=headers)).status_code

    async def scenario() -> dict[str, int]:
        async with opened(tmp_path) as served:
            shown = {"no key": None, "wrong key": "sk-stranger", **served.keys}
            return {what: await ask(served, key) for what, key in shown.items()}

    found = asyncio.run(scenario())
    # The Messages route is asked with an empty body, which is refused after the key was admitted.
    assert found.pop("right") in ((400,) if name == "serve, messages" else (200, 204))
    assert found == {"no key": 401, "wrong key": 401, "expired": 401, "wrong scope": wrong_scope}


@pytest.mark.parametrize(
    ("path", "body", "header"),
    [
        ("/v1/chat/completions", CHAT_ROUTE[2], "authorization"),
        ("/v1/responses", {"model": "default", "input": "find b"}, "authorization"),
        ("/v1/messages", {"model": "default", "messages": [USER], "max_tokens": 9}, "x-api-key"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_counted_in_every_dialect_and_a_used_up_quota_is_refused_in_its_words(
    path: str, body: Any, header: str, stream: bool, tmp_path: Path
) -> None:
    key = NamedKey(name="alice", hash=hash_key("sk-a"), scope=("complete",), tokens_per_day=1)
    gate = Gate("serve", Keys([key]), audit=AuditLog(tmp_path / "audit.jsonl"))
    headers = {header: "sk-a" if header == "x-api-key" else "Bearer sk-a"}

    async def scenario() -> list[httpx.Response]:
        engine = ScriptedEngine(["an answer"] * 2, encode=ByteTokenizer().encode)
        versions = Versions([Version("m", engine)])
        async with (
            ModelServer(versions=versions, chat=CHAT, sampling=Sampling(max_tokens=200), gate=gate) as server,
            httpx.AsyncClient(base_url=server.base_url.removesuffix("/v1"), headers=headers) as client,
        ):
            first = await client.post(path, json={**body, "stream": stream})
            await eventually(lambda: bool(read_lines(tmp_path / "audit.jsonl")))
            return [first, await client.post(path, json={**body, "stream": stream})]

    first, second = asyncio.run(scenario())
    lines = read_lines(tmp_path / "audit.jsonl")
    assert (first.status_code, second.status_code, lines[1]["reason"]) == (200, 429, "tokens_per_day = 1")
    if not stream:
        usage = first.json()["usage"]
        used = usage.get("prompt_tokens", usage.get("input_tokens")) + usage.get(
            "completion_tokens", usage.get("output_tokens")
        )
        assert lines[0]["tokens"] == used
    assert lines[0]["tokens"] > len("an answer")
    assert int(second.headers["retry-after"]) > 0
    error = second.json()["error"]
    assert error["type"] == "rate_limit_error"
    assert "tokens_per_day = 1" in error["message"]
    assert (second.json().get("type") == "error") == (path == "/v1/messages")


def test_a_stream_that_its_client_leaves_is_counted(tmp_path: Path) -> None:
    key = NamedKey(name="alice", hash=hash_key("sk-a"), scope=("complete",), connections=1)
    gate = Gate("serve", Keys([key]), audit=AuditLog(tmp_path / "audit.jsonl"))

    async def scenario() -> None:
        versions = Versions([Version("m", Endless())])  # type: ignore[arg-type]
        async with (
            ModelServer(versions=versions, chat=CHAT, sampling=Sampling(max_tokens=900), gate=gate) as server,
            openai.AsyncOpenAI(base_url=server.base_url, api_key="sk-a", max_retries=0) as client,
        ):
            stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
            await anext(aiter(stream))
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(model="m", messages=[USER])
            await stream.close()
            await eventually(lambda: len(read_lines(tmp_path / "audit.jsonl")) == 2)

    asyncio.run(scenario())
    lines = read_lines(tmp_path / "audit.jsonl")
    assert [line["status"] for line in lines] == [429, 200]
    assert lines[1]["tokens"] > 0


def test_a_browser_is_asked_for_the_key_as_a_password(tmp_path: Path) -> None:
    async def scenario() -> list[httpx.Response]:
        async with watched(tmp_path) as served, httpx.AsyncClient() as client:
            url = f"{served.address}/"
            return [await client.get(url), await client.get(url, auth=("anyone", "sk-right"))]

    asked, shown = asyncio.run(scenario())
    assert (asked.status_code, asked.headers["www-authenticate"][:5]) == (401, "Basic")
    assert (shown.status_code, "train/1/a/0.0" in shown.text) == (200, True)


@asynccontextmanager
async def started(*arguments: str, log: Path, **environment: str) -> AsyncIterator[dict[str, Any]]:
    """Run a server as a user does, with its standard error in a file, and yield what it prints when it answers."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPARRING_")}
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sparring", *arguments, "--port", "0", "--json"),
            cwd=ROOT,
            env={**own, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        printed = b""
        while not printed.endswith(b"}\n"):
            line = await process.stdout.readline()
            assert line, read_text(log)
            printed += line
        yield json.loads(printed)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


def find_command_lines() -> bytes:
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes()
        except OSError:
            continue
    return found


def test_no_key_is_in_any_file_log_process_list_or_page(run: Path, tmp_path: Path) -> None:
    names = {"client": "complete", "recorder": "complete", "operator": "admin", "reader": "read"}
    file, created = tmp_path / "keys.toml", {}
    for name, scope in names.items():
        command = [sys.executable, "-m", "sparring", "keys", "create", name, "--scope", scope, "--keys", str(file)]
        done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, check=True)
        created[name] = json.loads(done.stdout)["api_key"]
    seen = {"wrong": "sk-wrong-" + "w1" * 20, **created}

    async def ask(base_url: str, key: str, **options: Any) -> int:
        body = {"model": "run", "messages": [{"role": "user", "content": "7?"}], "max_tokens": 4, **options}
        async with httpx.AsyncClient(timeout=60) as client:
            heads = {"authorization": f"Bearer {key}"}
            in_path = base_url.replace("/v1", f"/s/{key}/v1")
            await client.post(f"{in_path}/chat/completions", json=body)
            return (await client.post(f"{base_url}/chat/completions", json=body, headers=heads)).status_code

    async def scenario() -> tuple[list[int], bytes, str]:
        def options(name: str) -> list[str]:
            return ["--keys", str(file), "--audit-log", str(tmp_path / f"{name}.jsonl")]

        async with (
            started("serve", str(run), *options("serve"), log=tmp_path / "serve.log") as model,
            started(
                *("record", "--upstream", model["base_url"], "--model", "run", "--key-env", "UPSTREAM_KEY"),
                *("--out", str(tmp_path / "recorded"), *options("record")),
                log=tmp_path / "record.log",
                UPSTREAM_KEY=created["recorder"],
            ) as recorder,
            started("watch", str(run), *options("watch"), log=tmp_path / "watch.log") as page,
        ):
            keys = (created["client"], seen["wrong"], created["reader"])
            status = [await ask(one["base_url"], key) for one in (model, recorder) for key in keys]
            status.append(await ask(model["base_url"], created["client"], stream=True))
            async with httpx.AsyncClient(timeout=60) as client:
                heads = {"authorization": f"Bearer {created['operator']}"}
                versions = await client.get(f"{model['base_url']}/sparring/versions", headers=heads)
                shown = await client.get(page["address"], auth=("any", created["reader"]))
            status += [versions.status_code, shown.status_code]
            return status, find_command_lines(), f"{versions.text}{shown.text}{model}{recorder}{page}"

    status, command_lines, pages = asyncio.run(scenario())
    assert status == [200, 401, 403, 200, 401, 403, 200, 200, 200]
    assert b"--upstream" in command_lines
    audited = read_lines(tmp_path / "serve.jsonl")
    assert {line["name"] for line in audited} == {"client", "recorder", "operator", "reader", None}
    assert all(line["tokens"] > 0 for line in audited if line["status"] == 200 and "chat" in line["path"])
    files = [path for folder in (tmp_path, run) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    texts = {"/proc/*/cmdline": command_lines, "pages": pages.encode(), **{str(one): one.read_bytes() for one in files}}
    found = [(name, place) for name, key in seen.items() for place, text in texts.items() if key.encode() in text]
    assert found == []
