"""Serve the latest metrics of a run to Prometheus, at an HTTP address and in a file for the node exporter.

No other module imports prometheus_client.

The metric `rollout/reward/mean` is named `sparring_rollout_reward_mean{run="..."}`. Alert rules for these names are in
`sparring/templates/prometheus/alerts.yml`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from prometheus_client import CollectorRegistry, Gauge, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from sparring.findings import Severity
from sparring.runtime.logs import get_logger
from sparring.types import Json, TrajectoryGroup
from sparring.web.hosts import find_host_names, find_refusal

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = get_logger(__name__)

STATUSES = ("running", "completed", "stopped", "failed")
LINGER_SECONDS = 60.0
"""The longest time that the address stays open after the end of the run. It closes as soon as the final state has been
read twice, because two servers may read it."""
READ_RECENTLY_SECONDS = 300.0
"""If the address was not read for this time, it does not stay open."""
_SENDING_SECONDS = 0.5
"""Time for sending the response to the last read."""


@final
class PrometheusTracker:
    """Exports the latest value of each metric, the step, its time, findings by severity and the run's status."""

    def __init__(
        self,
        address: str | None = None,
        *,
        run: str,
        textfile: Path | None = None,
        clock: Callable[[], float] = time.time,
        linger_seconds: float = LINGER_SECONDS,
        report: Callable[[str], object] = logger.info,
    ) -> None:
        """Open the address and write the file.

        `address` is host:port, and port 0 selects a free port. `textfile` is replaced as a whole whenever a value
        changes. `report` receives a message if `close` waits. Raises OSError if the address cannot be opened or the
        file cannot be written.
        """
        self._clock = clock
        self._report = report
        self._linger_seconds = linger_seconds
        self._opened = time.monotonic()
        self._is_stopped = False
        self._textfile = textfile
        self._registry = CollectorRegistry()
        self._reads = _Reads()
        # This is registered first, so that a read after a status change counts as a read of the new status.
        if address is not None:
            self._registry.register(self._reads)
        self._gauges: dict[str, Gauge] = {}
        self._run = run
        self._findings = _Findings(run)
        self._registry.register(self._findings)
        self._status = Gauge(
            "sparring_run_status", "1 for the current status.", ["run", "status"], registry=self._registry
        )
        self._write()
        self._server = None
        if address is not None:
            host, _, port = address.rpartition(":")
            self._server, self._thread = start_http_server(int(port), addr=host, registry=self._registry)
            self._server.set_app(refuse_pages(self._server.get_app(), find_host_names(host, ())))
            self.port: int = self._server.server_port
            """The port of the server."""
            self._url = f"http://{host}:{self.port}/metrics"

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        for one in STATUSES:
            self._status.labels(self._run, one).set(one == status)
        if status == "running":
            # The alert for a missing first step counts from the start of the run.
            self._set(*_LAST_STEP, self._clock())
        else:
            self._reads.restart()
        self._is_stopped = status == "stopped"
        self._write()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._set(gauge_name(name), name, value)
        self._set("sparring_step", "The optimizer step of the latest metrics.", step)
        self._set(*_LAST_STEP, self._clock())
        self._write()

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        self._findings.counts[str(finding["severity"])] += 1
        self._write()

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None: ...

    def log_artifact(self, name: str, content: Json) -> None: ...

    def close(self) -> None:
        """Wait until the final state of the run has been read, then close the address. The file stays.

        Waits for at most LINGER_SECONDS. If the address was not read recently, waits only until the address has been
        open for LINGER_SECONDS, so that a server can see a run that ended early.
        """
        if self._server is None:
            return
        seconds = self._linger_seconds
        if not self._reads.was_recent(READ_RECENTLY_SECONDS):
            seconds = 0.0 if self._is_stopped else seconds - (time.monotonic() - self._opened)
        if seconds > 0:
            self._report(
                f"the run has ended; {self._url} serves its last state until it has been read twice, for at most "
                f"{seconds:.0f} s; press Ctrl-C again to end at once"
            )
        if self._reads.wait(2, max(0.0, seconds)):
            time.sleep(_SENDING_SECONDS)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = None

    def _write(self) -> None:
        if self._textfile is not None:
            write_to_textfile(str(self._textfile), self._registry)

    def _set(self, name: str, description: str, value: float) -> None:
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, description, ["run"], registry=self._registry)
        self._gauges[name].labels(self._run).set(value)


_LAST_STEP = (
    "sparring_last_step_timestamp_seconds",
    "Time of the latest metrics, or of the run's start, in seconds since 1970.",
)


class _Reads(Collector):
    """Counts how often the address was read. It exports nothing."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num = 0
        self._last: float | None = None

    def collect(self) -> Iterator[Metric]:
        with self._changed:
            self._num += 1
            self._last = time.monotonic()
            self._changed.notify_all()
        return iter(())

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def restart(self) -> None:
        """Reset the count."""
        with self._changed:
            self._num = 0

    def was_recent(self, seconds: float) -> bool:
        with self._changed:
            return self._last is not None and time.monotonic() - self._last < seconds

    def wait(self, num: int, seconds: float) -> bool:
        """Wait at most `seconds` for `num` reads since `restart`, and return whether this number was reached."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num >= num, timeout=seconds)


class _Findings(Collector):
    """Counts findings by severity. Unlike the library's Counter, it has no `_created` series, which would repeat the
    help text."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.counts = {severity.value: 0 for severity in Severity}

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily("sparring_findings", "Findings so far.", labels=["run", "severity"])
        for severity, count in self.counts.items():
            family.add_metric([self._run, severity], count)
        yield family


def gauge_name(metric: str) -> str:
    """Return the Prometheus name of a metric, which contains only letters, digits and underscores."""
    return "sparring_" + re.sub(r"[^a-zA-Z0-9]+", "_", metric).strip("_")


def refuse_pages(app: WSGIApplication, names: frozenset[str] | None) -> WSGIApplication:
    """Return an app that refuses requests of web pages before `app`. `names` are those of `find_host_names`."""

    def checked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        host, origin = (environ.get(name, "").lower() for name in ("HTTP_HOST", "HTTP_ORIGIN"))
        refusal = find_refusal(host, origin, names, num_hosts=int("HTTP_HOST" in environ))
        if refusal is None:
            return app(environ, start_response)
        start_response(f"{refusal.status} Refused", [("Content-Type", "application/json")])
        return [refusal.body]

    return checked
