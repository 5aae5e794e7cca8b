"""A run whose machine is lost with its disk continues elsewhere from its copy, and a store that fails ends no run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparring.copies.fetch import fetch
from sparring.copies.manifest import read_newest
from sparring.copies.store import Store
from sparring.ledger import Ledger
from sparring.run_folders import RunFolder
from sparring.runtime.faults import Fault
from tests.faults.test_crashes import fingerprint, read_charts
from tests.faults.training import Training

BUCKET = "runs"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Training:
    training = Training(tmp_path_factory.mktemp("uninterrupted"))
    assert training.over() == 0
    return training


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with S3's interface in this process, and the environment that leads clients to it."""
    server_module = pytest.importorskip("moto.server", reason="needs moto[s3], flask and flask-cors")
    pytest.importorskip("s3fs", reason="needs s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    import s3fs

    files = s3fs.S3FileSystem(skip_instance_cache=True)
    if not files.exists(BUCKET):
        files.mkdir(BUCKET)
    try:
        yield f"s3://{BUCKET}"
    finally:
        server.stop()


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    return f"{request.getfixturevalue('moto')}/{tmp_path.name}"


def wait_for_checkpoint(url: str, name: str) -> None:
    """Wait until a copy contains a checkpoint."""
    store, deadline = Store(f"{url}/run"), time.monotonic() + 60
    while (newest := read_newest(store)) is None or f"checkpoints/{name}/manifest.json" not in newest[1].files:
        assert time.monotonic() < deadline, f"no copy contains checkpoint {name}"
        time.sleep(0.1)


def kill_after_copy(training: Training, url: str, checkpoint: str, *faults: Fault) -> None:
    """Train until a copy contains a checkpoint, kill the process, and delete its folder."""
    process = training.start(*faults)
    try:
        wait_for_checkpoint(url, checkpoint)
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(30)
    assert process.exitcode == -signal.SIGKILL
    shutil.rmtree(training.runs_dir)


def test_a_run_that_lost_its_machine_and_its_disk_ends_as_if_nothing_had_happened(
    store: str, uninterrupted: Training, tmp_path: Path
) -> None:
    training = Training(tmp_path / "first", (f"run.copy_to={store}",))
    kill_after_copy(training, store, "000002", Fault("step.claimed", "delay", at=3, seconds=120))

    elsewhere = Training(tmp_path / "second")
    folder = fetch(f"{store}/run", elsewhere.runs_dir, say=print)
    assert folder.status()["status"] == "interrupted"
    assert folder.status()["step"] == 2
    assert elsewhere.over(resume=True) == 0
    assert fingerprint(elsewhere) == fingerprint(uninterrupted)
    assert read_charts(elsewhere) == read_charts(uninterrupted)
    with Ledger(elsewhere.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []

    # The continued run is copied, too.
    again = fetch(f"{store}/run", tmp_path / "third", say=print)
    assert again.status()["status"] == "completed"
    assert fingerprint(Training(tmp_path / "third")) == fingerprint(uninterrupted)


def test_a_run_ends_normally_while_its_store_is_unreachable(
    moto: str, uninterrupted: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = (Fault("copy.sending", "error", at=3, times=10**6),)
    training = Training(tmp_path / "runs", (f"run.copy_to={moto}/{tmp_path.name}",))
    assert training.over(*faults) == 0
    assert fingerprint(training) == fingerprint(uninterrupted)
    log = [json.loads(line)["message"] for line in (training.run / "log.jsonl").read_text().splitlines()]
    assert any("The run continues, and the copy is tried again" in line for line in log)
    assert any("sparring runs copy" in line for line in log)
    assert RunFolder(training.run).status()["status"] == "completed"


def test_a_slow_store_delays_no_step(uninterrupted: Training, tmp_path: Path) -> None:
    slow = (Fault("copy.sending", "delay", at=1, times=10**6, seconds=0.2),)
    training = Training(tmp_path / "runs", (f"run.copy_to=file://{tmp_path}/store",))
    assert training.over(*slow) == 0
    assert fingerprint(training) == fingerprint(uninterrupted)
    times = [
        json.loads(line)["metrics"].get("timing_s/step", 0.0)
        for line in (training.run / "metrics.jsonl").read_text().splitlines()
    ]
    # A copy of about fifty blocks takes ten seconds.
    assert sum(times) < 5
    assert fetch(f"file://{tmp_path}/store/run", tmp_path / "second", say=print).status()["status"] == "completed"


def test_a_store_that_cannot_be_written_is_refused_before_the_run_exists(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    training = Training(tmp_path / "runs", (f"run.copy_to=file://{tmp_path}/store",))
    assert training.over() == 1
    assert not training.run.exists()
