"""The report of a run in progress, served on this machine and rebuilt while the run writes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import final

from sparring.errors import DataError, ServiceError
from sparring.report.episode_index import EpisodeIndex
from sparring.report.episodes import episodes
from sparring.report.page import page
from sparring.report.reading import Record, read_run
from sparring.report.verdict import build_verdict

HOST = "127.0.0.1"
"""Only this machine can connect, because the page shows everything that an agent received."""
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
    port: int,
    prices: Mapping[str, float],
    on_ready: Callable[[str], None],
    on_problem: Callable[[str], None],
) -> None:
    """Serve the page until KeyboardInterrupt. Port 0 selects a free port. `on_ready` is called with the address.

    Raises DataError if the folder is not a run, and ServiceError if the port is in use.
    """
    live = LivePage(run, prices, on_problem=on_problem)
    try:
        try:
            server = ThreadingHTTPServer((HOST, port), lambda *arguments: _Answer(live, *arguments))
        except OSError as error:
            raise ServiceError(
                f"cannot listen on port {port} of {HOST}: {error}; specify another port (--port)."
            ) from error
        with server:
            on_ready(f"http://{HOST}:{server.server_port}/")
            server.serve_forever()
    finally:
        live.close()


class _Answer(BaseHTTPRequestHandler):
    def __init__(self, live: LivePage, *arguments: object) -> None:
        self._live = live
        super().__init__(*arguments)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            # A foreign host name that resolves to this machine could read the page with its own scripts.
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "Use 127.0.0.1 or localhost as the host")
        elif self.path == "/":
            self._send(self._live.content, "text/html; charset=utf-8")
        elif self.path == "/version":
            state = {"version": self._live.version, "said": self._live.standing}
            self._send(json.dumps(state).encode(), "application/json")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because the page sends a request every three seconds."""

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)


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
