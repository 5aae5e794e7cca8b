"""The door to Prometheus: the latest numbers of a run at an address that its server reads. The only module that imports
prometheus_client.

`rollout/reward/mean` is `sparring_rollout_reward_mean{run="..."}`. Ready alert rules for these names are in
`sparring/templates/prometheus/alerts.yml`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

from prometheus_client import CollectorRegistry, Gauge, start_http_server
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from sparring.findings import Severity
from sparring.types import Json, TrajectoryGroup

STATUSES = ("running", "completed", "stopped", "failed")


@final
class PrometheusTracker:
    """Serves the latest value of each metric, the step, when it was, findings by severity and how the run stands."""

    def __init__(self, address: str, *, run: str, clock: Callable[[], float] = time.time) -> None:
        """`address` is host:port; port 0 takes a free one. Raises OSError when nothing can listen there."""
        self._clock = clock
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._run = run
        self._findings = _Findings(run)
        self._registry.register(self._findings)
        self._status = Gauge("sparring_run_status", "1 for how it stands.", ["run", "status"], registry=self._registry)
        host, _, port = address.rpartition(":")
        self._server, self._thread = start_http_server(int(port), addr=host, registry=self._registry)
        self.port: int = self._server.server_port
        """Where it listens."""

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        for one in STATUSES:
            self._status.labels(self._run, one).set(one == status)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._set(gauge_name(name), name, value)
        self._set("sparring_step", "The optimizer step of the latest numbers.", step)
        self._set("sparring_last_step_timestamp_seconds", "When they came, in seconds since 1970.", self._clock())

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        self._findings.counts[str(finding["severity"])] += 1

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None: ...

    def log_artifact(self, name: str, content: Json) -> None: ...

    def close(self) -> None:
        """The address answers no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _set(self, name: str, description: str, value: float) -> None:
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, description, ["run"], registry=self._registry)
        self._gauges[name].labels(self._run).set(value)


class _Findings(Collector):
    """Counts findings by severity. Unlike the library's Counter it has no `_created` series, which repeats the counter's help."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.counts = {severity.value: 0 for severity in Severity}

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily("sparring_findings", "Findings so far.", labels=["run", "severity"])
        for severity, count in self.counts.items():
            family.add_metric([self._run, severity], count)
        yield family


def gauge_name(metric: str) -> str:
    """What a metric is called in Prometheus, which knows letters, digits and underscores."""
    return "sparring_" + re.sub(r"[^a-zA-Z0-9]+", "_", metric).strip("_")
