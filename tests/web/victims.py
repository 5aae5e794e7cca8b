"""The servers of this machine that a page in a browser could reach, each without a key or with one that the page knows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.engines.server import engine_app
from sparring.gateway import Gateway
from sparring.gateway.app import create_app
from sparring.gateway.server import ModelServer
from sparring.gateway.versions import Version, Versions
from sparring.serving.record import Recording
from sparring.sessions import EpisodeIdentity, Session
from sparring.tracking.prometheus import PrometheusTracker
from sparring.types import Sampling
from sparring.web.gate import Gate
from sparring.web.keys import Keys, single_key
from sparring.web.listener import Listener
from tests.foreign import serving
from tests.gateway.builders import CHAT
from tests.report.stored_run import StoredRun, episode
from tests.report.test_live import watched

SECRET = "the-secret-of-this-run"
REQUEST = {"model": "default", "messages": [{"role": "user", "content": "hello"}]}
HOSTILE = Path(__file__).with_name("hostile.html")


@dataclass
class Victim:
    """A server: its address without a path, what can be read and written there, and what it has computed so far."""

    name: str
    base: str
    reads: Sequence[str]
    writes: dict[str, Any] = field(default_factory=dict)
    computed: Sequence[Any] = ()
    key: str | None = None

    @property
    def port(self) -> int:
        return urlsplit(self.base).port or 0

    def describe(self, base: str | None = None) -> dict[str, Any]:
        """Return what a page needs, with another address of the server if it is given."""
        return {
            "name": self.name,
            "base": self.base if base is None else base,
            "reads": list(self.reads),
            "writes": self.writes,
            "key": self.key,
        }


def scripted() -> ScriptedEngine:
    return ScriptedEngine(lambda _request: f"{SECRET}<|end|>", encode=ByteTokenizer().encode)


class _Stopping:
    """What a function started, and its end."""

    def __init__(self, started: Any, stop: Any) -> None:
        self.started, self.stop = started, stop


@contextmanager
def running(context: Any) -> Iterator[Any]:
    """Enter an asynchronous context on a loop and a thread of its own, and yield what it gives."""

    async def start() -> _Stopping:
        return _Stopping(await context.__aenter__(), lambda: context.__aexit__(None, None, None))

    with serving(start) as entered:
        yield entered.started


@contextmanager
def served(*, key: str | None = None, allowed: Sequence[str] = ()) -> Iterator[Victim]:
    """The endpoint of `sparring serve`."""
    engine = scripted()
    gate = None if key is None else Gate("serve", Keys([single_key(key, "complete")]))
    options: Any = {"chat": CHAT, "sampling": Sampling(max_tokens=64), "gate": gate, "allowed_hosts": allowed}
    with running(ModelServer(versions=Versions([Version("m", engine)]), **options)) as server:
        base = server.base_url.removesuffix("/v1")
        writes = {"/v1/chat/completions": REQUEST}
        yield Victim("serve", base, ["/v1/models", "/openapi.json"], writes, engine.requests, key)


@contextmanager
def recorded(folder: Path) -> Iterator[Victim]:
    """The endpoint of `sparring record`, before an endpoint that counts its answers."""
    answered: list[Any] = []

    def act(messages: Any) -> str:
        answered.append(messages)
        return SECRET

    recording = Recording(folder, ScriptedMessages(act, name="upstream"), model="m")
    with running(recording), listening(create_app(recording)) as base:
        yield Victim("record", base, ["/v1/models"], {"/v1/chat/completions": REQUEST}, answered)
    # What was answered was recorded, and nothing else.
    lines = [line for file in folder.glob("trajectories/*") for line in file.read_text("utf-8").splitlines()]
    assert sum(len(json.loads(line)["turns"]) for line in lines) == len(answered)


@contextmanager
def episode_endpoint() -> Iterator[Victim]:
    """The gateway of a run with one episode, whose key the page knows."""
    engine = scripted()
    session = Session(EpisodeIdentity("episode"), engine=engine, chat=CHAT, sampling=Sampling(max_tokens=64))

    @asynccontextmanager
    async def endpoint() -> AsyncIterator[Any]:
        async with Gateway() as gateway, session:
            yield gateway.register(session)

    with running(endpoint()) as entry:
        path = f"/s/{entry.api_key}/v1"
        base = entry.base_url.removesuffix("/v1")
        yield Victim("gateway", base, [f"{path}/models"], {f"{path}/chat/completions": REQUEST}, engine.requests)


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """Serve an app on a free port, and yield its address."""
    listener = Listener(app, "127.0.0.1", 0)

    async def start() -> Listener:
        await listener.start()
        return listener

    with serving(start):
        yield listener.address


@contextmanager
def engine_server() -> Iterator[Victim]:
    """The server of `sparring engine`, which needs no key on this machine."""
    engine = scripted()
    with listening(engine_app(engine)) as base:
        yield Victim("engine", base, ["/v1/engine"], {"/v1/sample": {}, "/v1/weights?version=1": {}}, engine.requests)


@contextmanager
def metrics() -> Iterator[Victim]:
    """The address that Prometheus reads."""
    tracker = PrometheusTracker("127.0.0.1:0", run=SECRET, linger_seconds=0)
    try:
        yield Victim("metrics", tracker.address, ["/metrics"])
    finally:
        tracker.close()


@contextmanager
def watched_run(folder: Path) -> Iterator[Victim]:
    """The page of `sparring watch`."""
    run = StoredRun(folder)
    episodes = {"train-1": [episode("train/1/a/0.0", reward=1.0, score=1.0, text=SECRET)]}
    run.log({1: {"rollout/reward/mean": 0.5}}, episodes)
    with watched(run.path) as address:
        yield Victim("watch", address.removesuffix("/"), ["/", "/version"])


@contextmanager
def all_victims(folder: Path) -> Iterator[list[Victim]]:
    (folder / "watched").mkdir()
    starts = [served, partial(recorded, folder / "recorded"), episode_endpoint, engine_server, metrics]
    starts.append(partial(watched_run, folder / "watched"))
    with ExitStack() as stack:
        yield [stack.enter_context(start()) for start in starts]


class _HostileSite(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = HOSTILE.read_bytes()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def hostile_site() -> Iterator[int]:
    """Serve the page of the stranger, and yield the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _HostileSite)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def script_of(page: Path = HOSTILE) -> str:
    """Return the script of the page."""
    return page.read_text("utf-8").partition("<script>")[2].partition("</script>")[0]


def call(victims: Sequence[dict[str, Any]]) -> str:
    """Return the expression that starts the attack."""
    return f"void attack({json.dumps(list(victims))})"
