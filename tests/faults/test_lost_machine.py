"""A run whose machine is lost with its disk continues elsewhere from its copy, and a store that fails ends no run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparring.copies.fetch import fetch
from sparring.copies.manifest import read_newest
from sparring.copies.store import Store
from sparring.ledger import Ledger
from sparring.run_folders import RunFolder
from sparring.runtime.faults import Fault
from tests.copies.s3 import BUCKET, serve_s3
from tests.faults.test_crashes import fingerprint, read_charts
from tests.faults.training import Training


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Training:
    training = Training(tmp_path_factory.mktemp("uninterrupted"))
    assert training.over() == 0
    return training


@pytest.fixture(scope="module")
def moto() -> Iterator[Mapping[str, str]]:
    with serve_s3() as (_, variables):
        yield variables


@dataclass(frozen=True)
class Place:
    """An address for copies, and the environment variables that it needs."""

    url: str
    variables: Mapping[str, str]

    def train_in(self, runs_dir: Path) -> Training:
        return Training(runs_dir, (f"run.copy_to={self.url}",), variables=self.variables)


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "file":
        return Place(f"file://{tmp_path}/store", {})
    return Place(f"s3://{BUCKET}/{tmp_path.name}", request.getfixturevalue("moto"))


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
    place: Place, uninterrupted: Training, tmp_path: Path
) -> None:
    training = place.train_in(tmp_path / "first")
    kill_after_copy(training, place.url, "000002", Fault("step.claimed", "delay", at=3, seconds=120))

    elsewhere = Training(tmp_path / "second", variables=place.variables)
    folder = fetch(f"{place.url}/run", elsewhere.runs_dir, say=print)
    assert folder.status()["status"] == "interrupted"
    assert folder.status()["step"] == 2
    assert elsewhere.over(resume=True) == 0
    assert fingerprint(elsewhere) == fingerprint(uninterrupted)
    assert read_charts(elsewhere) == read_charts(uninterrupted)
    with Ledger(elsewhere.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []

    # The continued run is copied, too.
    again = fetch(f"{place.url}/run", tmp_path / "third", say=print)
    assert again.status()["status"] == "completed"
    assert fingerprint(Training(tmp_path / "third")) == fingerprint(uninterrupted)


def test_a_run_ends_normally_while_its_store_is_unreachable(uninterrupted: Training, tmp_path: Path) -> None:
    with serve_s3() as (_, variables):
        training = Place(f"s3://{BUCKET}/{tmp_path.name}", variables).train_in(tmp_path / "runs")
        process = training.start(Fault("step.claimed", "delay", at=2, seconds=3))
        deadline = time.monotonic() + 60
        while not (training.run / "copy.json").exists():
            assert time.monotonic() < deadline, "the run does not start to copy"
            time.sleep(0.01)
    # The server has ended.
    process.join(180)
    assert process.exitcode == 0
    assert fingerprint(training) == fingerprint(uninterrupted)
    assert RunFolder(training.run).status()["status"] == "completed"
    log = [json.loads(line)["message"] for line in (training.run / "log.jsonl").read_text().splitlines()]
    assert any("The run continues, and the copy is tried again" in line for line in log)
    assert any("sparring runs copy" in line for line in log)


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
