"""MLflow has what the run folder has, each number and each episode once, however its server fails; the run never waits."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("sqlalchemy", reason="the full mlflow is not installed: `make mlflow`")
mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: `make mlflow`")

from sparring.tracking.delivery import Record, deliver  # noqa: E402
from sparring.tracking.exporter import Exporter  # noqa: E402
from sparring.tracking.local import LocalTracker  # noqa: E402
from sparring.tracking.mlflow_receiver import MlflowReceiver  # noqa: E402
from sparring.tracking.services import mlflow as mlflow_service  # noqa: E402
from sparring.types import TrajectoryGroup  # noqa: E402
from tests.tracking.stored import log_step, started_run  # noqa: E402
from tests.tracking.test_spans import PLAYED  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

READY_SECONDS = 240.0
"""For a server to start, or to receive a run: a busy machine may be ten times slower."""


def tell(run: Path, uri: str) -> None:
    receiver = MlflowReceiver(run, uri=uri, experiment="exp")
    messages: list[str] = []
    over = deliver(
        run,
        receiver,
        Record.read(run / "mlflow.json", uri),
        is_over=lambda: True,
        wait=lambda _: None,
        report=messages.append,
    )
    assert (over, messages) == (True, [])


def held(uri: str) -> tuple[Any, Any, list[Any]]:
    """The client, the one run, and its traces."""
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("exp").experiment_id
    (run,) = client.search_runs([experiment])
    return client, run, list(client.search_traces(locations=[experiment]))


def test_metrics_parameters_findings_artifacts_and_traces_are_there_once(tmp_path: Path) -> None:
    uri, run = f"sqlite:///{tmp_path / 'mlflow.sqlite'}", started_run(tmp_path / "run")
    tracker = LocalTracker(run, clock=lambda: 2000.0)
    for step in (1, 2):
        log_step(tracker, step)
    tracker.log_finding({"rule": "a.b", "severity": "error", "symptom": "Bad.", "change": "Fix it.", "step": 2})
    tracker.close()
    tell(run, uri)
    record = json.loads((run / "mlflow.json").read_text())
    record["told"] = {}  # as after a crash, all at once: everything is sent again
    (run / "mlflow.json").write_text(json.dumps(record))
    tell(run, uri)

    client, found, traces = held(uri)
    assert found.info.status == "FINISHED"
    assert found.data.params == {"run.seed": "3"}
    assert found.data.tags["finding.a.b"] == "error after step 2: Bad. Fix it."
    history = client.get_metric_history(found.info.run_id, "rollout/reward/mean")
    assert [(one.step, one.value, one.timestamp) for one in history] == [(1, 0.5, 2_000_000), (2, 1.0, 2_000_000)]
    assert set(found.data.metrics) == {"rollout/reward/mean", "tool called _x"}
    assert {file.path for file in client.list_artifacts(found.info.run_id)} >= {"manifest.json", "findings.jsonl"}

    assert len(traces) == 4
    (trace,) = (one for one in traces if one.info.client_request_id == "train/2/t1/1.0")
    assert trace.info.trace_metadata["mlflow.sourceRun"] == found.info.run_id
    assert trace.info.tags["step"] == "2"
    assert (trace.info.request_time, trace.info.execution_duration) == (1_000_000, 10_000)
    spans = {span.name: span for span in trace.data.spans}
    assert list(spans) == ["episode train/2/t1/1.0", "turn 0", "model call", "get", "put", "turn 1"]
    assert (spans["get"].start_time_ns, spans["get"].end_time_ns) == (1003 * 10**9, 1005 * 10**9)
    assert spans["put"].status.status_code == "ERROR"
    assert spans["model call"].attributes["logprob_mean"] == -0.375
    values = {one.name: one.value for one in trace.info.assessments if one.span_id is None}
    assert values == {"reward": 1.0, "reward/right": 1.0, "score": 0.5, "score/format": 0.5}
    assert len(trace.info.assessments) == 6  # and the rewards of two turns


def test_secrets_are_masked_in_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_API_KEY", "canary-4f1b")
    uri, run = f"sqlite:///{tmp_path / 'mlflow.sqlite'}", started_run(tmp_path / "run")
    leaked = replace(PLAYED, error="401 for canary-4f1b", final_state=None)
    tracker = LocalTracker(run)
    tracker.log_groups(1, [TrajectoryGroup(task=PLAYED.task, trajectories=(leaked,))], split="train")
    tracker.log_finding({"rule": "a", "severity": "note", "symptom": "It printed canary-4f1b.", "change": ""})
    tracker.close()
    tell(run, uri)
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "run"]
    contents += [path.read_bytes() for path in (run / "mlflow_artifacts").rglob("*") if path.is_file()]
    text = b"".join(path for path in contents)
    assert b"401 for ***" in (tmp_path / "mlflow.sqlite").read_bytes()
    assert text.count(b"canary-4f1b") == (run / "trajectories/train-1.jsonl").read_bytes().count(b"canary-4f1b")


class Server:
    """A real MLflow server with a folder of its own; it can be started again after it was killed."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self._folder / 'server.sqlite'}",
            "--artifacts-destination", str(self._folder / "artifacts"),
        ]  # fmt: skip
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True, cwd=self._folder
            )
        until(lambda: self._answers(), "the server to answer")

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.uri}/health", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def limit_files(self, size: int) -> None:
        """No file of it grows beyond `size` bytes, as on a disk that is full."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(folder.name)) == self._process.pid:  # pyright: ignore[reportOptionalMemberAccess]
                    resource.prlimit(int(folder.name), resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            except ProcessLookupError:
                continue


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"waited {READY_SECONDS} s for {what}"
        time.sleep(0.2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    made = Server(tmp_path / "server")
    try:
        yield made
    finally:
        made.kill()


def received_all_numbers(run: Path) -> bool:
    delivered = json.loads((run / "mlflow.json").read_text())["told"]
    return delivered["metrics.jsonl"] == [(run / "metrics.jsonl").stat().st_size]


@contextmanager
def tracked_while_it_runs(run: Path, uri: str) -> Iterator[tuple[LocalTracker, Exporter]]:
    local, tracker = LocalTracker(run), Exporter(run, mlflow_service(uri=uri, experiment="exp"))
    try:
        yield local, tracker
    finally:
        local.close()
        tracker.finish(READY_SECONDS)


def test_a_server_that_is_down_killed_hung_full_and_back_each_time_has_everything_in_order_and_once(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    run = started_run(tmp_path / "run")

    def until_lost(times: int) -> None:
        until(lambda: caplog.text.count("cannot be reached") == times, f"outage {times}")

    def until_back(times: int) -> None:
        until(lambda: caplog.text.count("can be reached again") == times, f"the end of outage {times}")

    with tracked_while_it_runs(run, server.uri) as (local, tracker):
        log_step(local, 1)
        until_lost(1)  # not there yet
        server.start()
        until_back(1)

        server.signal(signal.SIGSTOP)
        began = time.monotonic()
        log_step(local, 2)
        log_step(local, 3)
        assert time.monotonic() - began < 1.0
        until_lost(2)
        server.signal(signal.SIGCONT)
        until_back(2)

        server.limit_files(4096)
        log_step(local, 4)
        until_lost(3)
        server.limit_files(resource.RLIM_INFINITY)
        until_back(3)

        log_step(local, 5, episodes=24)
        time.sleep(0.5)
        until(lambda: received_all_numbers(run), "the numbers of step 5")
        server.kill()  # while it receives the episodes
        log_step(local, 6)
        until_lost(4)
        server.start()
        local.close()
        assert tracker.finish(READY_SECONDS)
    client, found, traces = held(server.uri)
    history = client.get_metric_history(found.info.run_id, "rollout/reward/mean")
    assert [one.step for one in history] == [1, 2, 3, 4, 5, 6]
    ids = sorted(one.info.client_request_id for one in traces)
    assert len(ids) == 34
    assert len(set(ids)) == 34
    assert all(len(one.data.spans) == 7 and len(one.info.assessments) == 6 for one in traces)
    assert found.info.status == "FINISHED"


class _Wrong(BaseHTTPRequestHandler):
    """Another program's server: it knows none of these addresses."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"<html>not here</html>")

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


def test_a_server_of_another_kind_costs_a_warning_and_what_it_did_not_receive_is_sent_to_a_right_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = started_run(tmp_path / "run")
    wrong = HTTPServer(("127.0.0.1", 0), _Wrong)
    threading.Thread(target=wrong.serve_forever, daemon=True).start()
    local = LocalTracker(run)
    tracker = Exporter(run, mlflow_service(uri=f"http://127.0.0.1:{wrong.server_port}", experiment="exp"))
    log_step(local, 1)
    local.close()
    assert not tracker.finish(READY_SECONDS)
    wrong.shutdown()
    wrong.server_close()
    assert "cannot be reached" in caplog.text
    assert "sparring runs sync" in caplog.text
    uri = f"sqlite:///{tmp_path / 'mlflow.sqlite'}"
    tell(run, uri)
    assert len(held(uri)[2]) == 2
