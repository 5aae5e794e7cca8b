"""The report of a run in progress, served on this machine and rebuilt while the run writes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, final

from sparring.errors import DataError
from sparring.report.episode_index import EpisodeIndex
from sparring.report.episodes import episodes
from sparring.report.page import page
from sparring.report.reading import Record, read_run
from sparring.report.verdict import build_verdict
from sparring.runtime import interrupts
from sparring.web.gate import Gate, Gated, find_page_key, refuse_page
from sparring.web.listener import Listener

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOK_SECONDS = 2.0
"""The pause between checks of the run's folder."""
MAKING_SHARE = 0.2
"""The largest share of time for building pages. A long run's page is rebuilt less often, so that the run is not slowed
down."""


@final
class LivePage:
    """The newest page of a run, rebuilt by its own thread. The constructor raises DataError if the folder is not a
    run."""

    def __init__(self, run: Path, prices: Mapping[str, float], *, on_problem: Callable[[str], None]) -> None:
        self._run, self._prices, self._on_problem = run, prices, on_problem
        self._seen = _state_of(run)
        self._index = EpisodeIndex()
        self.version, self.content, self.standing = 1, *self._make()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sparring-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._closing.set()
        self._thread.join()

    def _make(self) -> tuple[bytes, str]:
        record = read_run(self._run)
        played = episodes(record, index=self._index)
        verdict = build_verdict(record, seen_in_training=played.seen_in_training)
        return page(record, played, verdict, self._prices, is_live=True).encode(), _standing(record)

    def _follow(self) -> None:
        pause, problem = LOOK_SECONDS, None
        while not self._closing.wait(pause):
            state = _state_of(self._run)
            if state == self._seen:
                continue
            began = time.monotonic()
            try:
                self.content, self.standing = self._make()
            except (DataError, OSError) as error:
                # A file that is being written may be complete next time. A lasting problem is reported once.
                if str(error) != problem:
                    problem = str(error)
                    self._on_problem(f"the page is not updated: {problem}")
            else:
                self.version += 1
                self._seen = state
            pause = max(LOOK_SECONDS, (time.monotonic() - began) * (1 / MAKING_SHARE - 1))


def watch(
    run: Path,
    *,
    listen: Callable[[ASGIApp], Listener],
    gate: Gate,
    prices: Mapping[str, float],
    on_ready: Callable[[str], None],
    on_problem: Callable[[str], None],
) -> None:
    """Serve the page until KeyboardInterrupt, to those whom the gate lets read. `listen` returns the server of an app.
    `on_ready` is called with the address.

    Raises DataError if the folder is not a run, and ServiceError if the port is in use.
    """
    live = LivePage(run, prices, on_problem=on_problem)
    try:
        interrupts.run(_serve(listen(live_app(live, gate)), on_ready))
    finally:
        live.close()


async def _serve(listener: Listener, on_ready: Callable[[str], None]) -> None:
    await listener.start()
    try:
        on_ready(f"{listener.address}/")
        await asyncio.Event().wait()
    finally:
        await listener.stop()


def live_app(live: LivePage, gate: Gate) -> ASGIApp:
    """Return the app that sends the page, and at /version what changes in it, to those whom the gate lets read."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        status, content, kind = HTTPStatus.OK, live.content, "text/html; charset=utf-8"
        if scope["path"] == "/version":
            content = json.dumps({"version": live.version, "said": live.standing}).encode()
            kind = "application/json"
        elif scope["path"] != "/":
            status, content, kind = HTTPStatus.NOT_FOUND, b"not found", "text/plain"
        if scope["method"] not in ("GET", "HEAD"):
            status, content, kind = HTTPStatus.METHOD_NOT_ALLOWED, b"method not allowed", "text/plain"
        headers = {
            "content-type": kind,
            "content-length": str(len(content)),
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
        }
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status.value, "headers": encoded})
        await send({"type": "http.response.body", "body": content})

    return Gated(app, gate, "read", find_key=find_page_key, refuse=refuse_page)


def _standing(record: Record) -> str:
    status = record.status.get("status", "unknown")
    of = f" of {record.config.schedule.max_steps}" if record.config.is_trainable else ""
    return f"{status}, step {record.last_step}{of}"


def _state_of(run: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of the files that the page reads. They change when the run writes."""
    files = [*run.glob("*.json*"), *run.glob("evaluations/*.json"), *run.glob("trajectories/*")]
    found = []
    for path in files:
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return tuple(sorted(found))
