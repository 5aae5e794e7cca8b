"""A run whose folder disappears, as if a shared file system were unmounted, ends with the reason and goes on exactly when the
folder is back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparring.ledger import Ledger
from sparring.run_folders import RunFolder
from sparring.runtime.faults import FAULTS_VARIABLE, LOG_VARIABLE
from tests.faults.test_crashes import fingerprint, read_charts
from tests.faults.training import RECIPE, Training

DELAY_SECONDS = 3.0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Training:
    training = Training(tmp_path_factory.mktemp("uninterrupted"))
    assert training.over() == 0
    return training


@contextmanager
def train(runs: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the command, and wait until it holds the batch of step 3, after the checkpoint of step 2."""
    log = runs / "faults.txt"
    fault = f"step.claimed=delay,at=3,seconds={DELAY_SECONDS:g}"
    process = subprocess.Popen(
        [sys.executable, "-m", "sparring", "train", str(RECIPE), "--name", "run", "--no-check", f"run.runs_dir={runs}"],
        env={**os.environ, FAULTS_VARIABLE: fault, LOG_VARIABLE: str(log)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        deadline = time.monotonic() + 120
        while not (log.exists() and log.read_text()):
            assert process.poll() is None, "the run ends before step 3"
            assert time.monotonic() < deadline, "the run does not reach step 3"
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


def assert_same(training: Training, uninterrupted: Training) -> None:
    assert RunFolder(training.run).status()["status"] == "completed"
    assert fingerprint(training) == fingerprint(uninterrupted)
    assert read_charts(training) == read_charts(uninterrupted)
    with Ledger(training.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []


@pytest.mark.parametrize("is_replaced", [False, True], ids=["nothing", "empty folder"])
def test_a_run_whose_folder_is_gone_ends_and_goes_on_exactly_when_it_is_back(
    uninterrupted: Training, tmp_path: Path, is_replaced: bool
) -> None:
    training, elsewhere = Training(tmp_path), tmp_path / "elsewhere"
    with train(tmp_path) as process:
        training.run.rename(elsewhere)
        if is_replaced:
            training.run.mkdir()
        began = time.monotonic()
        _, output = process.communicate(timeout=60)
        # The current step ends first.
        assert time.monotonic() - began < DELAY_SECONDS + 20
    assert process.returncode == 4, output
    reason = "another folder is in its place" if is_replaced else "No such file or directory"
    error = output.strip().splitlines()[-1]
    assert error.startswith(f"error: the run's folder {training.run} is gone (")
    assert reason in error
    assert "resume the run from its last checkpoint" in error
    # No folder was created, for example on the disk below the place of a shared file system, and no run in another one.
    assert training.run.exists() == is_replaced
    if is_replaced:
        assert {path.name for path in training.run.iterdir()}.isdisjoint({"checkpoints", "run.toml", "status.json"})
        shutil.rmtree(training.run)

    elsewhere.rename(training.run)
    with Ledger(training.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
    status = json.loads((training.run / "status.json").read_text())
    assert (status["status"], status["step"]) == ("running", 2)
    assert RunFolder(training.run).status()["status"] == "interrupted"
    assert training.over(resume=True) == 0
    assert_same(training, uninterrupted)


def test_a_folder_that_is_back_before_the_step_ends_was_never_missed(uninterrupted: Training, tmp_path: Path) -> None:
    training = Training(tmp_path)
    with train(tmp_path) as process:
        training.run.rename(tmp_path / "elsewhere")
        time.sleep(DELAY_SECONDS / 3)
        (tmp_path / "elsewhere").rename(training.run)
        _, output = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert_same(training, uninterrupted)
