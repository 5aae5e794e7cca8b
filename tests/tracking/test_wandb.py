"""Weights & Biases has what the run folder has, each step once; its library waits for no network and asks nothing."""

import json
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb", reason="wandb is not installed: `make wandb`")

from wandb.proto.wandb_internal_pb2 import Record

from sparring.runtime.keeper import list_descendants
from sparring.tracking.exporter import Exporter
from sparring.tracking.local import LocalTracker
from sparring.tracking.services import Service, wandb
from tests.tracking.stored import log_finding, log_step, started_run

KEY = "canary0123456789canary0123456789canary01"
OFFLINE, ONLINE = (wandb(project="project", entity=None, mode=mode) for mode in ("offline", "online"))
SECONDS = 240.0
"""For a process to start and deliver: a busy machine may be ten times slower."""
_BLOCK = 32768


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A server that accepts connections and never answers, in place of all others."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        for name in ("WANDB_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, address)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield listening


def logged(path: Path, *steps: int) -> Path:
    run = path if path.exists() else started_run(path)
    tracker = LocalTracker(run, clock=lambda: 2000.0)
    for step in steps:
        log_step(tracker, step)
    tracker.close()
    return run


def read(run: Path) -> dict[str, list[Record]]:
    """The records of the only folder that was written offline, by kind. The file is a LevelDB log after 7 bytes."""
    (path,) = run.glob("wandb/offline-run-*/*.wandb")
    content, at, begun, found = path.read_bytes(), 7, b"", {}
    while at + 7 <= len(content):
        if (left := _BLOCK - at % _BLOCK) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        begun += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            record, begun = Record.FromString(begun), b""
            found.setdefault(record.WhichOneof("record_type"), []).append(record)
    return found


def history(run: Path) -> list[dict[str, Any]]:
    rows = [{"/".join(item.nested_key) or item.key: item.value_json for item in one.history.item}
            for one in read(run)["history"]]  # fmt: skip
    return [{name: json.loads(value) for name, value in row.items()} for row in rows]


def processes() -> list[str]:
    """The commands of the processes that were started here and run."""
    found = []
    for pid in list_descendants():
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [command for command in found if "wandb" in command or "exporter_process" in command]


def until_ended() -> None:
    deadline = time.monotonic() + SECONDS
    while processes():
        assert time.monotonic() < deadline, processes()
        time.sleep(0.1)


def export(run: Path, service: Service, seconds: float = SECONDS) -> bool:
    is_complete = Exporter(run, service).finish(seconds)
    until_ended()
    return is_complete


def test_metrics_settings_alerts_episodes_and_files_are_written_offline_without_the_network_or_the_key(
    tmp_path: Path, server: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    run = logged(tmp_path / "run", 1, 2)
    tracker = LocalTracker(run, clock=lambda: 3000.0)
    tracker.log_metrics(2, {"val/score/mean": 0.25})  # a second line of the same step
    log_finding(tracker, 2)
    log_finding(tracker, 1, severity="note")
    tracker.close()
    assert export(run, OFFLINE)
    assert caplog.text == ""
    with pytest.raises(BlockingIOError):
        server.accept()

    first, second = history(run)
    assert (first["_step"], first["_timestamp"], first["rollout/reward/mean"]) == (1, 2000.0, 0.5)
    assert (second["_step"], second["rollout/reward/mean"], second["val/score/mean"]) == (2, 1.0, 0.25)
    assert "kl" not in first  # NaN is left out
    records = read(run)
    (stored,) = (one.run for one in records["run"])
    assert (stored.project, stored.display_name) == ("project", "run")
    assert {one.key: json.loads(one.value_json) for one in stored.config.update}["run"] == {"seed": 3}
    assert [(one.alert.title, one.alert.text, one.alert.level) for one in records["alert"]] == [
        ("a.b", "error after step 2: Bad. Fix it.", "ERROR")
    ]
    (files,) = run.glob("wandb/offline-run-*/files")
    table = json.loads((files / second["episodes/train/path"]).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [row["id"] for row in rows] == ["train/2/t1/0.0", "train/2/t1/1.0"]
    assert (rows[0]["reward"], rows[0]["score"], rows[0]["turns"]) == (1.0, 0.5, 2)
    assert '    get({"key": 1})' in rows[0]["messages"]
    assert (files / "manifest.json").is_file()
    everything = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in everything if KEY.encode() in path.read_bytes()] == []


def test_a_resumed_run_continues_the_same_run_with_each_step_once(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", 1, 2)
    assert export(run, OFFLINE)
    (before,) = read(run)["run"]
    tracker = LocalTracker(run)
    tracker.log_metrics(1, {"training/resumed": 1.0})
    tracker.log_metrics(2, {"rollout/reward/mean": 9.0})
    tracker.log_metrics(3, {"rollout/reward/mean": 1.5})
    tracker.close()
    assert export(run, OFFLINE)
    (after,) = read(run)["run"]
    assert after.run.run_id == before.run.run_id
    # A step cannot be replaced, so the first values of the repeated step remain.
    assert [(row["_step"], row["rollout/reward/mean"]) for row in history(run)] == [(1, 0.5), (2, 1.0), (3, 1.5)]


def test_a_process_that_is_killed_is_replaced_and_no_step_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = logged(tmp_path / "run", 1, 2)
    exporter = Exporter(run, OFFLINE)
    deadline = time.monotonic() + SECONDS
    while not list(run.glob("wandb/offline-run-*/*.wandb")) or not (run / "wandb.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for pid in list_descendants():
        with suppress(OSError):
            if b"exporter_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    logged(run, 3)
    assert exporter.finish(SECONDS)
    assert "was killed (9); another one continues" in caplog.text
    assert [row["_step"] for row in history(run)] == [1, 2, 3]
    until_ended()


def test_a_server_that_never_answers_costs_a_warning_and_no_process_is_left(
    tmp_path: Path, server: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    run = logged(tmp_path / "run", 1)
    began = time.monotonic()
    assert not export(run, ONLINE, 10.0)
    assert time.monotonic() - began < SECONDS
    server.accept()[0].close()  # it was asked
    assert "Weights & Biases has not received all data" in caplog.text
    everything = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in everything if KEY.encode() in path.read_bytes()] == []


def test_a_missing_key_is_a_warning_and_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    assert not export(logged(tmp_path / "run", 1), ONLINE, 60.0)
    assert "cannot be reached" in caplog.text
    assert "API key" in caplog.text or "api_key" in caplog.text
